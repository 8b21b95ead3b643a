from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights

from clbench.methods.base import Method
from clbench.methods.replay import AGem, DerPlusPlus, Rehearsal, Replay
from clbench.training.stage import Stage

THREE = ("a", "b", "a")


def sizes(method: Rehearsal) -> dict[int, int]:
    return {task: len(entry["positions"]) for task, entry in method.kept.items()}


def filled(folder: Path, method: Rehearsal) -> Cell:
    """Return a cell whose memory is filled from all stages, without training."""
    cell = Cell(folder, method, heads=THREE)
    for index in range(3):
        method.after_stage(cell.open(index))
    return cell


def test_memory_by_task_has_equal_parts(folder: Path) -> None:
    method = Rehearsal(memory=8)
    cell = Cell(folder, method, heads=THREE)
    history = []
    for index in range(3):
        method.after_stage(cell.open(index))
        history.append(sizes(method))
    assert history == [{0: 8}, {0: 4, 1: 4}, {0: 3, 1: 3, 2: 2}]
    assert all(len(set(e["positions"])) == len(e["positions"]) for e in method.kept.values())


def test_the_reservoir_holds_the_smallest_keys_of_all(folder: Path) -> None:
    method = Rehearsal(memory=8, choice="reservoir")
    cell = filled(folder, method)
    keys = {
        (task, row): float(key)
        for task in range(3)
        for row, key in enumerate(
            torch.rand(12, generator=cell.open(task).rng("memory"), dtype=torch.float64)
        )
    }
    best = set(sorted(keys, key=lambda place: keys[place])[:8])
    memory = {(task, int(row)) for task, e in method.kept.items() for row in e["positions"]}
    assert memory == best


def test_the_reservoir_is_a_uniform_sample(folder: Path) -> None:
    """Every row of every task is kept equally often: 8 of 36."""
    counts = np.zeros((3, 12))
    runs = 300
    for seed in range(runs):
        method = Rehearsal(memory=8, choice="reservoir")
        method.setup(None)  # type: ignore[arg-type]
        stage: Any = SimpleNamespace(data=SimpleNamespace(rows=range(12)))
        for stage.index in range(3):
            rng = torch.Generator().manual_seed(97 * seed + stage.index)
            stage.rng = {"memory": rng}.__getitem__
            method.after_stage(stage)
        for task, entry in method.kept.items():
            counts[task, entry["positions"]] += 1
    share = counts / runs
    assert share.sum() == pytest.approx(8)
    assert np.abs(share.sum(1) - 8 / 3).max() < 0.25  # three standard errors
    assert np.abs(share - 8 / 36).max() < 0.1


def test_draws_are_rows_of_the_memory_without_replacement(folder: Path) -> None:
    method = Replay(memory=9, recall=5)
    cell = filled(folder, method)
    stage = cell.open(2)
    stage.reads_earlier_rows = True
    method.kept.pop(2)
    for _ in range(20):
        parts = method.draw(stage, "x")
        places = [(p.batch.task, int(i)) for p in parts for i in p.indices]
        assert len(set(places)) == len(places) == 5
        assert sum(p.share for p in parts) == pytest.approx(1.0)
        for part in parts:
            positions = method.kept[part.batch.task]["positions"]
            assert list(part.batch.positions) == [positions[i] for i in part.indices]


def test_loss_is_the_batch_plus_the_weighted_mean_over_drawn_rows(folder: Path) -> None:
    """batch loss + weight · mean over all drawn rows, whatever their tasks."""
    method = Replay(memory=6, recall=6, weight=0.5)
    cell = filled(folder, method)
    stage = cell.open(2)
    stage.model.eval()
    method.kept.pop(2)
    batch = next(iter(stage.batches("b")))
    with torch.no_grad():
        loss = method.loss(stage, batch)
        every = []
        for task, entry in method.kept.items():
            data = cell.tasks[task]
            for row in entry["positions"]:
                one = data.batch(np.array([row]), stage.device)
                logits = stage.logits(one).double().numpy()[0]
                every.append(np.log(np.exp(logits).sum()) - logits[int(one.labels[0])])
        expected = float(stage.loss(batch)) + 0.5 * float(np.mean(every))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [Replay, DerPlusPlus])
def test_heads_of_earlier_tasks_are_trained_too(folder: Path, kind: type[Method]) -> None:
    cell = Cell(folder, kind(memory=8))
    cell.stage(0)
    before = weights(cell)["heads.t0.weight"]
    cell.stage(1)
    assert not torch.equal(before, weights(cell)["heads.t0.weight"])


def test_gradients_of_one_stage_do_not_reach_the_next(folder: Path) -> None:
    """A head that only replayed rows used starts its next stage without a gradient."""

    class Watched(AGem):
        """Leaves a gradient on a head that no optimizer holds."""

        def edit_gradients(self, stage: Stage) -> None:
            super().edit_gradients(stage)
            if stage.index == 1:
                stage.model.head("a").weight.grad = torch.ones(2, 32)

        def before_phase(self, stage: Stage) -> None:
            assert stage.model.head("a").weight.grad is None

    Cell(folder, Watched(memory=8), heads=THREE).run()
