"""What a stage tells methods: its weights, its classes, and the steps to sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights
from helpers.checkpoints import make_checkpoint

from clbench.methods.base import Vanilla


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("model"))


def test_trainable_weights_are_those_of_the_backbone_and_the_stages_heads(folder: Path) -> None:
    cell = Cell(folder, Vanilla())
    frozen = "backbone.embeddings.word_embeddings.weight"
    cell.model.get_parameter(frozen).requires_grad_(False)
    names = [name for name in weights(cell) if name != frozen and not name.startswith("heads.t1")]
    stage = cell.open(0)
    assert list(stage.trainable_weights()) == names
    assert [id(w) for w in stage.trainable()] == [id(cell.model.get_parameter(n)) for n in names]


def test_restoring_puts_back_the_weights_of_a_snapshot_alone(folder: Path) -> None:
    cell = Cell(folder, Vanilla())
    before = cell.context.snapshot(["heads.t0.bias"])
    with torch.no_grad():
        for value in cell.model.parameters():
            value.add_(1.0)
    moved = weights(cell)
    cell.context.restore(before)
    assert torch.equal(weights(cell).pop("heads.t0.bias"), before["heads.t0.bias"])
    assert all(
        torch.equal(value, moved[name])
        for name, value in weights(cell).items()
        if name not in before
    )


def test_classes_are_those_of_the_rows(folder: Path) -> None:
    cell = Cell(folder, Vanilla(), shown=(2, 5))
    assert cell.open(0).classes().tolist() == [True, True, False, False, False]
    assert cell.open(1).classes().tolist() == [False, False, True, True, False]
    cell.model.heads["a"] = torch.nn.Linear(32, 1)
    targets = np.linspace(0.0, 1.0, 12, dtype=np.float32)
    cell.tasks[0] = replace(cell.tasks[0], rows=replace(cell.tasks[0].rows, labels=targets))
    assert cell.open(0).classes().tolist() == [True]


@pytest.mark.parametrize(("steps", "every"), [(20, 1), (90, 3), (100, 4)])
def test_thirty_points_of_a_stage_are_sampled(folder: Path, steps: int, every: int) -> None:
    stage = Cell(folder, Vanilla()).open(0)
    stage.total_steps, stage.done_before = steps, 10
    for stage.step in range(steps - 10):
        stage.sample("size", torch.tensor(2.0))
    points = [float(step) for step in range(10, steps) if step % every == 0]
    assert stage.log["size"] == [[step, 2.0] for step in points]
