"""Gradient clipping, the clock of a stage, and the points at which it is scored for curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.cell import PROTOCOL, Cell
from helpers.checkpoints import make_checkpoint
from torch import Tensor, nn

from clbench.core.errors import NonFiniteLossError
from clbench.methods.base import Vanilla
from clbench.training import engine
from clbench.training.batches import Batch, TaskData
from clbench.training.engine import Probe, clip_gradients, scored_steps, train_stage
from clbench.training.memory import StepMemory
from clbench.training.protocol import StageRecord
from clbench.training.stage import Stage


def weights(scale: float, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(40, 30), (7,), (3, 5, 2)]
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = scale * torch.randn(
            parameter.shape, generator=generator, dtype=torch.float64
        ).to(dtype)
    parameters[0].grad = parameters[0].grad.t().contiguous().t()  # column-major
    return [*parameters, nn.Parameter(torch.zeros(4))]  # and one without a gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.001, 1.0, 1e4])
def test_clipping_equals_torchs(scale: float, dtype: torch.dtype) -> None:
    ours, theirs = weights(scale, dtype), weights(scale, dtype)
    clip_gradients(ours, 1.0)
    nn.utils.clip_grad_norm_(theirs, 1.0)
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(
            mine.grad, other.grad, rtol=1e-2 if mine.dtype == torch.bfloat16 else 1e-5, atol=0.0
        )
    assert ours[-1].grad is None


def test_gradients_within_the_norm_are_not_touched() -> None:
    ours, untouched = weights(0.001), weights(0.001)
    clip_gradients(ours, 1.0)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours[:-1], untouched[:-1], strict=True))


def test_clipping_accepts_weights_without_gradients() -> None:
    clip_gradients([nn.Parameter(torch.zeros(3))], 1.0)


def test_scored_steps_are_evenly_spread_and_include_both_ends() -> None:
    grid = [0, 10, 20, 30, 40]
    assert scored_steps(grid, 100) == grid
    assert scored_steps(grid, 3) == [0, 20, 40]
    assert scored_steps(grid, 2) == [0, 40]
    assert scored_steps(grid, 1) == scored_steps([], 9) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("model"))


def probed(folder: Path, tokens: int) -> tuple[StageRecord, list[int], list[str]]:
    """Train 20 epochs of 3 steps with 12 points; return also the scored steps and the notes."""
    protocol = PROTOCOL.model_copy(update={"epochs": 20, "curve_points": 12})
    stage = Cell(folder, Vanilla(), protocol=protocol).open(0)
    record = train_stage(stage, Vanilla(), probe=Probe(lambda: {"t0": 0.5}, tokens))
    return record, [step for step, _ in record.curves["scores"].get("t0", [])], stage.notes


@pytest.mark.slow
def test_scoring_along_the_way_takes_a_tenth_of_the_training_work_at_most(folder: Path) -> None:
    record, all_points, notes = probed(folder, tokens=1)
    assert all_points == [0, *record.curves["step"]]
    assert not notes
    # A training step costs three forward passes over its tokens, scoring one.
    work = 3 * record.tokens
    for share in (2, 5, 12):
        tokens = work // (10 * share)
        _, scored, notes = probed(folder, tokens)
        assert len(scored) == share
        assert scored[0] == 0
        assert scored[-1] == record.steps
        assert tokens * len(scored) <= 0.1 * work
        assert notes == [
            f"stage 0 (t0): scored at {share} of 13 curve points, because scoring for curves may "
            "take at most 10% of the training work."
        ]
    assert probed(folder, tokens=work)[1] == []


@pytest.mark.parametrize(("scored", "after"), [("probe", [0, 2, 4, 6]), ("after_epoch", [3, 6])])
def test_training_after_scoring_has_dropout(folder: Path, scored: str, after: list[int]) -> None:
    trains: list[bool] = []
    calls: list[int] = []

    class Watched(Vanilla):
        def loss(self, stage: Stage, batch: Batch) -> Tensor:
            trains.append(all(module.training for module in stage.model.modules()))
            return super().loss(stage, batch)

    cell = Cell(folder, Watched(), protocol=PROTOCOL.model_copy(update={"curve_points": 3}))

    def score() -> dict[str, float]:
        cell.model.eval()
        calls.append(len(trains))
        return {}

    options: dict[str, Any] = {scored: Probe(score, 1) if scored == "probe" else score}
    train_stage(cell.open(0), cell.method, **options)
    assert calls == after
    assert trains == [True] * 6


def test_counting_tensors_is_not_in_the_training_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, counts, measure = [0.0], [], StepMemory.measure

    @contextmanager
    def slow_measure(self: StepMemory, *arguments: Any) -> Iterator[None]:
        clock[0] += 1000.0
        counts.append(clock[0])
        with measure(self, *arguments):
            yield

    class OneSecondAToken(Vanilla):
        def loss(self, stage: Stage, batch: Batch) -> Tensor:
            clock[0] += batch.tokens
            return super().loss(stage, batch)

    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(StepMemory, "measure", slow_measure)
    record = train_stage(Cell(folder, OneSecondAToken()).open(0), OneSecondAToken())
    assert counts
    assert record.memory_mb
    assert record.train_seconds == pytest.approx(record.tokens)


def test_what_a_method_does_before_a_stage_is_in_the_training_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    class Prepares(Vanilla):
        def before_stage(self, stage: Stage) -> None:
            clock[0] += 300.0

        def training_data(self, stage: Stage) -> Sequence[TaskData]:
            clock[0] += 40.0
            return super().training_data(stage)

    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    record = train_stage(Cell(folder, Prepares()).open(0), Prepares())
    assert record.train_seconds == pytest.approx(340.0)


def test_a_loss_that_is_found_to_diverge_at_a_point_names_that_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Diverges(Vanilla):
        def loss(self, stage: Stage, batch: Batch) -> Tensor:
            return super().loss(stage, batch) * torch.nan

    def add_loss(self: Any, loss: Tensor, *_: Any, **__: Any) -> None:
        self._loss += loss.detach()  # unchecked, as between the checks on accelerators

    monkeypatch.setattr(engine._Curve, "add_loss", add_loss)
    with pytest.raises(NonFiniteLossError, match=r"number at step 6 of 6\."):
        train_stage(Cell(folder, Diverges()).open(0), Diverges())
