from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, differ, weights

from clbench.core.errors import SettingsError
from clbench.methods.anchors import RecAdam
from clbench.suite.baselines import read_baseline
from clbench.training.protocol import Protocol

STEADY = PROTOCOL.model_copy(update={"steps": 30, "schedule": "constant", "warmup": 0.0})


def distances(cell: Cell, stage: int, name: str = "distance") -> list[float]:
    return [value for _, value in cell.traces[stage].curves[name]]


def test_k_t0_and_gamma_scale_with_the_stage(folder: Path) -> None:
    protocol = PROTOCOL.model_copy(update={"steps": 780, "lr": 4e-4})
    cell = Cell(folder, RecAdam(), protocol=protocol)
    stage = cell.open(0)
    stage.steps = 780
    group, plain = cell.method.parameter_groups(stage)
    # A tenth of RTE's 7,800 steps, at twenty times the rate.
    assert group["t0"] == pytest.approx(100)
    assert group["k"] == pytest.approx(0.5)
    assert group["gamma"] == pytest.approx(250)
    assert plain["recall"] is False
    assert {id(p) for p in plain["params"]} == {id(p) for p in cell.model.head("t0").parameters()}


def test_a_very_short_stage_still_recalls(folder: Path) -> None:
    cell = Cell(folder, RecAdam()).run()
    curves = cell.traces[0].curves
    assert [value for _, value in curves["t0"]] == [3.0]
    assert [value for _, value in curves["k"]] == pytest.approx([50 / 3])  # k·t0 = 50 stays
    assert [step for step, _ in curves["lambda"]] == [0, 1, 2, 3, 4, 5]
    expected = [1 / (1 + math.exp(-50 / 3 * (t - 3))) for t in range(1, 7)]
    assert [value for _, value in curves["lambda"]] == pytest.approx(expected)


def test_printed_settings_are_used_unchanged(folder: Path) -> None:
    protocol = PROTOCOL.model_copy(update={"lr": 1e-4})
    method = RecAdam(scaling="printed", k=0.1, t0=250, gamma=5000)
    cell = Cell(folder, method, protocol=protocol)
    stage = cell.open(0)
    stage.steps = 6
    group = method.parameter_groups(stage)[0]
    assert (group["k"], group["t0"], group["gamma"]) == (0.1, 250, 5000)


def test_the_recorded_distance_is_euclidean_by_layer_and_in_total(folder: Path) -> None:
    cell = Cell(folder, RecAdam(), protocol=STEADY)
    cell.stage(0)
    before = {n: v.double().numpy() for n, v in weights(cell).items()}
    stage, _ = cell.stage(1)
    total = 0.0
    for layer in cell.model.layer_groups():
        inside = [n for n in layer.parameters if n in cell.pretrained]
        square = sum(
            float(np.square(before[n] - cell.pretrained[n].double().numpy()).sum()) for n in inside
        )
        total += square
        if inside:
            first = stage.log[f"distance.{layer.name}"][0]
            assert first == [0.0, pytest.approx(math.sqrt(square), rel=1e-5)]
    assert stage.log["distance"][0] == [0.0, pytest.approx(math.sqrt(total), rel=1e-5)]
    assert len(stage.log["distance"]) == 31
    now = {n: v.double().numpy() for n, v in weights(cell).items()}
    end = sum(
        float(np.square(now[n] - w.double().numpy()).sum()) for n, w in cell.pretrained.items()
    )
    assert stage.log["distance"][-1] == [30.0, pytest.approx(math.sqrt(end), rel=1e-5)]


def test_a_later_stage_returns_to_the_pretrained_weights(folder: Path) -> None:
    cell = Cell(folder, RecAdam(t0=3900, gamma=15000), protocol=STEADY).run()
    distance = distances(cell, 1)
    assert distance[0] > 0.05
    # 14 pulls of 0.3 before λ rises: 0.7^14 of the way is left.
    assert distance[14] == pytest.approx(distance[0] * 0.7**14, rel=0.02)


@pytest.mark.slow
def test_random_weights_are_recalled(folder: Path) -> None:
    method = RecAdam(initialisation="random", t0=3900, gamma=15000)
    cell = Cell(folder, method, protocol=STEADY)
    assert not torch.equal(
        cell.start["backbone.embeddings.word_embeddings.weight"],
        cell.pretrained["backbone.embeddings.word_embeddings.weight"],
    )
    cell.run()
    assert not cell.context.notes
    distance = distances(cell, 0)
    assert distance[0] > 5
    assert distance[14] < 0.01 * distance[0]
    assert float(cell.context.squared_distance(cell.pretrained).detach()) < distance[0]
    assert not differ(cell, Cell(folder, RecAdam(**method.settings()), protocol=STEADY).run())
    other = Cell(folder, RecAdam(**method.settings()), protocol=STEADY, seed=1)
    assert any(not torch.equal(other.start[name], cell.start[name]) for name in cell.start)


def test_anchor_previous_recalls_the_weights_of_the_last_stage(folder: Path) -> None:
    method = RecAdam(anchor="previous", t0=7800, gamma=15000)
    cell = Cell(folder, method, protocol=STEADY, heads=("t0", "t0"))
    cell.stage(0)
    previous = weights(cell)
    stage = cell.open(1)
    stage.steps = 30
    groups = method.parameter_groups(stage)
    assert len(groups) == 1  # the shared head is recalled too
    names = {id(p): n for n, p in cell.model.named_parameters()}
    assert "heads.t0.weight" in {names[id(p)] for p in groups[0]["params"]}
    for p, anchor in zip(groups[0]["params"], groups[0]["anchor"], strict=True):
        assert torch.equal(anchor, previous[names[id(p)]])
    stage, _ = cell.stage(1)
    assert [value for _, value in stage.log["distance"]][:25] == [0.0] * 25


def test_plain_adam_trains_a_shared_head(folder: Path) -> None:
    method = RecAdam()
    cell = Cell(folder, method, heads=("t0", "t0"))
    cell.stage(0)
    stage = cell.open(1)
    stage.steps = 6
    assert [group.get("recall", True) for group in method.parameter_groups(stage)] == [True, False]


def test_training_a_later_task_alone_starts_at_the_pretrained_weights(folder: Path) -> None:
    cell = Cell(folder, RecAdam(anchor="previous"), heads=("t0", "t0"))
    stage, _ = cell.stage(1)
    assert stage.log["distance"][0][1] == 0.0


@pytest.mark.slow
def test_a_stage_that_never_reaches_learning_is_noted(folder: Path) -> None:
    method = RecAdam(scaling="printed", k=0.1, t0=250, gamma=100)
    cell = Cell(folder, method, protocol=STEADY).run()
    assert cell.context.notes == [
        f"recadam: stage {i} (t{i}) of 30 steps ended with λ = 2.8e-10, before learning "
        "outweighed recalling."
        for i in range(2)
    ]
    assert not Cell(folder, RecAdam(), protocol=STEADY).run().context.notes


def test_overshooting_is_refused() -> None:
    message = r"^method 'recadam': .*lr·gamma = 2e-05·60000 = 1\.2.*for_lr"
    with pytest.raises(SettingsError, match=message):
        RecAdam(gamma=60000).check_protocol(PROTOCOL)
    with pytest.raises(SettingsError, match=r'= 5\. .*Or set scaling = "stage"\.'):
        RecAdam(gamma=5000, scaling="printed").check_protocol(PROTOCOL)


def test_weights_in_bf16_are_refused() -> None:
    RecAdam().check_protocol(Protocol(head="language-model"))
    with pytest.raises(SettingsError, match=r"anchor are lost in bf16. Set weights = 'float32'"):
        RecAdam().check_protocol(Protocol(head="language-model", weights="bf16"))


@pytest.mark.parametrize(
    ("annealing", "expected"),
    [("linear", [1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0]), ("constant", [0.5] * 6)],
)
def test_other_annealings_raise_lambda_differently(
    folder: Path, annealing: Any, expected: list[float]
) -> None:
    cell = Cell(folder, RecAdam(annealing=annealing)).run()
    assert [value for _, value in cell.traces[0].curves["t0"]] == [3.0]
    assert [value for _, value in cell.traces[0].curves["lambda"]] == pytest.approx(expected)
    assert differ(cell, Cell(folder, RecAdam()).run())


@pytest.mark.parametrize("name", ["recadam", "recadam-paper", "recadam-previous"])
def test_baselines_have_a_source_for_every_setting(name: str) -> None:
    baseline = read_baseline(name)
    assert set(baseline.sources) == set(baseline.settings)
    RecAdam(**baseline.settings)
