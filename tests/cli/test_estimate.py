from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.handmade import Baseline, PlannedCell, Scenario, pair
from safetensors.numpy import save_file

from clbench.cli.estimate import (
    GUESS,
    Estimate,
    count_parameters,
    from_finished,
    from_sizes,
    mean_tokens,
)
from clbench.results.cell import StageRecord
from clbench.suite.options import RunOptions
from clbench.suite.plan import make_plan
from clbench.suite.read import read_suite
from clbench.tasks.registry import load_task
from clbench.tasks.task import Rows


def timed(seconds: float, **changes: object):  # type: ignore[no-untyped-def]
    stage = StageRecord(
        task="a",
        rows=1,
        steps=1,
        epochs=1,
        examples=1,
        tokens=1,
        train_seconds=seconds - 1.0,
        eval_seconds=1.0,
    )
    return pair(**{"stages": [stage], **changes})  # type: ignore[arg-type]


def test_times_of_the_most_similar_finished_cells_are_used() -> None:
    results = [
        timed(10.0),
        timed(20.0, seed=1),
        timed(60.0, method="ewc"),
        timed(300.0, scenario="qnli-rte"),
    ]
    same, sister = PlannedCell(), PlannedCell(baseline=Baseline("other"))
    elsewhere = PlannedCell(scenario=Scenario("third"))
    # same scenario and baseline: (10 + 20) / 2
    assert from_finished([same], results).seconds == pytest.approx(15.0)  # type: ignore[union-attr]
    # same scenario: (10 + 20 + 60) / 3; none alike: (10 + 20 + 60 + 300) / 4; alone: half
    alone = replace(same, reference_of=1)
    estimate = from_finished([sister, elsewhere, alone], results)
    assert estimate is not None
    assert estimate.seconds == pytest.approx(30.0 + 97.5 + 7.5)
    assert str(estimate) == "about 2 min (from the times of 4 finished cells)"
    assert str(from_finished([same], results[:1])) == (
        "about 10 s (from the times of 1 finished cell)"
    )
    assert from_finished([same], []) is None


def test_a_guess_is_printed_as_a_range() -> None:
    assert str(Estimate(300.0, "a guess", GUESS)) == "somewhere between 2 min and 15 min (a guess)"


def test_parameters_are_counted_without_embeddings(tmp_path: Path) -> None:
    shapes = {
        "bert.embeddings.word_embeddings.weight": [1000, 8],
        "bert.encoder.layer.0.output.dense.weight": [8, 4],
        "bert.encoder.layer.0.output.dense.bias": [8],
    }
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(weights, tmp_path / "model.safetensors")
    assert count_parameters([tmp_path / "model.safetensors"]) == 8 * 4 + 8


def test_lengths_are_guessed_from_words_and_cut() -> None:
    rows = Rows.of(["a b c", " ".join("x" * 500)], None, [0, 1])
    # 3 words at 1.4 and two specials are 6.2; 500 words are cut at 100
    assert mean_tokens(rows, 100) == pytest.approx((6.2 + 100) / 2)
    pairs = Rows.of(["a b"], ["c d e"], [0])
    assert mean_tokens(pairs, 100) == pytest.approx(5 * 1.4 + 2)


def test_a_shared_stage_is_counted_once() -> None:
    own, shared = timed(10.0), timed(12.0, seed=1)
    shared.stages.insert(0, shared.stages[0].model_copy(update={"cached": True}))
    estimate = from_finished([PlannedCell()], [own, shared])
    assert estimate is not None
    assert estimate.seconds == pytest.approx(11.0)


def test_a_guess_counts_a_shared_stage_once() -> None:
    options = RunOptions(
        methods=["vanilla"], scenarios=["*acceptability"], seeds=[0], references=False
    )
    one = make_plan(read_suite("quick"), options)
    two = make_plan(read_suite("quick"), replace(options, methods=["vanilla", "ewc"]))
    first, both = from_sizes(one, one.cells).seconds, from_sizes(two, two.cells).seconds
    assert 1.2 * first < both < 1.9 * first


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda:1"])
@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_guess_is_for_the_device_of_the_run(
    device: str, has_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    options = RunOptions(methods=["vanilla"], seeds=[0], references=False, device=device)
    plan = make_plan(read_suite("quick"), options)
    on_gpu = device == "cuda:1" or (device == "auto" and has_gpu)
    machine = "one GPU" if on_gpu else "a few CPU cores"
    assert f"for {machine};" in str(from_sizes(plan, plan.cells[:1]))


def test_a_guess_counts_the_scoring_of_all_tasks_so_far() -> None:
    options = RunOptions(methods=["vanilla"], seeds=[0], references=False)
    plan = make_plan(read_suite("sequence-tiny"), options)
    (cell,) = [c for c in plan.cells if c.scenario.name == "five-tasks"][:1] or plan.cells[:1]
    estimate = from_sizes(plan, [cell])
    trained = scored = 0.0
    for number, name in enumerate(cell.scenario.task_names):
        task = load_task(name, data=None, base=plan.suite.base, own=plan.suite.file.task)
        task = task.limited(**plan.protocol.limits)
        steps, _ = plan.protocol.stage_length(name, len(task.train))
        length = plan.protocol.max_length
        trained += steps * plan.protocol.batch_of(name) * mean_tokens(task.train, length)
        stages = len(cell.scenario.task_names) - number  # in which it is scored
        scored += stages * len(task.validation) * mean_tokens(task.validation, length)
    # a forward pass costs a third of a training step
    assert estimate.scoring == pytest.approx(scored / (3 * trained), rel=0.01)


def test_the_share_of_scoring_is_measured_from_finished_cells() -> None:
    estimate = from_finished([PlannedCell()], [timed(11.0), timed(6.0, seed=1)])
    assert estimate is not None
    assert estimate.scoring == pytest.approx(2.0 / 15.0)
