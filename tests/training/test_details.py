"""Details of training that no other test notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cell import PROTOCOL, Cell
from helpers.checkpoints import make_checkpoint
from torch import Tensor
from training.test_batches import data

from clbench.methods.base import Vanilla
from clbench.methods.by_depth import LpFt
from clbench.training.batches import Batch, Endless, plan
from clbench.training.engine import scored_steps
from clbench.training.stage import Stage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_a_penalty_counts_once_a_step(folder: Path, accumulation: int) -> None:
    class Pulled(Vanilla):
        def loss(self, stage: Stage, batch: Batch) -> Tensor:
            return 0.0 * stage.trainable()[0].sum()

        def penalty(self, stage: Stage) -> Tensor:
            return 5.0 * stage.trainable()[0].sum()

        def edit_gradients(self, stage: Stage) -> None:
            self._seen = stage.trainable()[0].grad.unique().tolist()  # type: ignore[union-attr]

    protocol = PROTOCOL.model_copy(update={"steps": 1, "accumulation": accumulation})
    Cell(folder, method := Pulled(), protocol=protocol).stage(0)
    assert method._seen == [5.0]


def test_a_point_has_the_mean_loss_since_the_last_one_and_the_first_rate(
    folder: Path,
) -> None:
    class Counting(Vanilla):
        def loss(self, stage: Stage, batch: Batch) -> Tensor:
            return 0.0 * stage.trainable()[0].sum() + float(stage.step)

        def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
            first, *others = stage.trainable()
            return [{"params": [first], "lr": 0.5}, {"params": others, "lr": 0.25}]

    changes = {"curve_points": 2, "schedule": "constant", "warmup": 0.0}
    cell = Cell(folder, Counting(), protocol=PROTOCOL.model_copy(update=changes))
    _, record = cell.stage(0)
    assert record.curves["step"] == [3, 6]
    assert record.curves["loss"] == [1.0, 4.0]  # of 0, 1, 2 and 3, 4, 5
    assert record.curves["lr"] == [0.5, 0.5]


def test_batches_of_several_tasks_are_mixed() -> None:
    both = [data([3] * 20, 0), data([3] * 20, 1)]
    tasks = [source.task for source, _ in plan(both, [1, 1], 40, ("order", 0))]
    assert sorted(tasks) == [0] * 20 + [1] * 20 != tasks


def test_every_step_of_a_stage_has_its_own_dropout(folder: Path) -> None:
    stage = Cell(folder, Vanilla()).open(0)
    assert stage.masks is not None

    def mask(step: int, before: int = 0) -> Tensor:
        stage.step, stage.done_before = step, before
        stage.restart_dropout()
        return stage.masks.mask(torch.Size([64]), 0.5, torch.float32)  # type: ignore[union-attr]

    assert torch.equal(mask(0), mask(0))
    different = [mask(0), mask(1), mask(0, before=6)]  # the last one in a second phase
    assert len({tuple(each.tolist()) for each in different}) == 3


def test_streams_of_stages_seeds_and_names_differ(folder: Path) -> None:
    def first(index: int = 0, seed: int = 0, name: str = "a") -> float:
        stage = Cell(folder, Vanilla(), heads=("a", "a"), seed=seed).open(index)
        assert stage.random_seed(name) == stage.random_seed(name)
        return float(torch.rand(1, generator=stage.rng(name)))

    drawn = [first(), first(index=1), first(seed=1), first(name="b")]
    assert len({*drawn}) == 4
    assert first() == drawn[0]


def test_curves_of_a_second_phase_go_on_where_the_first_one_ends(folder: Path) -> None:
    class Watched(LpFt):
        def before_step(self, stage: Stage) -> None:
            stage.record("phase", stage.phase)

    stage, _ = Cell(folder, Watched()).stage(0)
    assert stage.log["phase"] == [[float(step), float(step >= 3)] for step in range(6)]


def test_a_stream_goes_on_within_a_pass() -> None:
    def stream(seed: int) -> Endless:
        return Endless(
            lambda order: torch.randperm(5, generator=order).tolist(),
            torch.Generator().manual_seed(seed),
        )

    one, other = stream(0), stream(1)
    for _ in range(7):
        next(one)
    other.set_state(one.get_state())
    assert [next(other) for _ in range(8)] == [next(one) for _ in range(8)]


def test_scored_steps_are_the_nearest_to_even_ones() -> None:
    assert scored_steps([0, 10, 20, 30, 40], 4) == [0, 10, 30, 40]
