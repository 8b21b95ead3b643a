"""SEQ* against numbers worked out by hand, and against what it must leave alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, weights

from clbench.methods.seq_star import CosineHead, SeqStar
from clbench.training.device import Precision


def growing(folder: Path, method: SeqStar, classes: list[list[int]], **options: Any) -> Cell:
    """Return a cell whose tasks have these classes of one head."""
    cell = Cell(folder, method, heads=("a",) * len(classes), **options)
    layer = torch.nn.Linear(32, 1 + max(max(part) for part in classes))
    if method.classifier == "cosine":
        cell.model.heads["a"] = CosineHead(layer)
    else:
        cell.model.heads["a"] = layer
    for i, part in enumerate(classes):
        cell.relabel(i, part)
    return cell


def test_the_cosine_head_by_hand() -> None:
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
    outputs = CosineHead(layer)(torch.tensor([[8.0, 6.0]]))
    torch.testing.assert_close(outputs, torch.tensor([[24 / 25, -3 / 5]]))


@pytest.mark.parametrize(
    ("preallocate", "precision", "expected"),
    [(True, "float32", math.log(8)), (True, "bf16", math.log(8)), (False, "float32", math.log(3))],
)
def test_classes_to_come_are_in_the_softmax(
    folder: Path, preallocate: bool, precision: Any, expected: float
) -> None:
    cell = growing(folder, SeqStar(preallocate=preallocate, classifier="linear"), [[0, 1], [2, 3]])
    cell.context.precision = Precision(precision, "cpu")
    cell.model.shown = {"a": 2}
    with torch.no_grad():
        cell.model.head("a").weight.zero_()
        cell.model.head("a").bias.copy_(torch.tensor([1.0, 2.0, 3.0, 2.0]).log())
    stage = cell.begin(0)
    batch = stage.data.batch(np.array([0, 2]), stage.device)  # two rows of class 0
    assert cell.method.loss(stage, batch).item() == pytest.approx(expected, rel=1e-6)


def test_only_heads_that_grow_are_cosine_by_default(folder: Path) -> None:
    own = Cell(folder, SeqStar(), heads=("a", "b"))
    assert not any(isinstance(head, CosineHead) for head in own.model.heads.values())
    assert isinstance(Cell(folder, SeqStar(), shown=(1, 2)).model.head("a"), CosineHead)


def test_the_encoder_is_trained_in_the_warm_up_only(folder: Path) -> None:
    cell = Cell(folder, SeqStar(warmup_epochs=1))
    _, trace = cell.stage(0)
    assert trace.steps == 3 + 6
    assert cell.moved() > 0
    before = weights(cell)
    assert cell.stage(1)[1].steps == 6
    for name, value in weights(cell).items():
        assert torch.equal(value, before[name]) == (not name.startswith("heads.t1."))
    none = Cell(folder, SeqStar(warmup_epochs=0)).run()
    assert none.moved() == 0
    assert [trace.steps for trace in none.traces] == [6, 6]


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_classifiers_of_old_classes_stay(folder: Path, classifier: Any, decay: float) -> None:
    protocol = PROTOCOL.model_copy(update={"weight_decay": decay})
    method = SeqStar(classifier=classifier)
    cell = growing(folder, method, [[0, 1], [2], [1, 3]], protocol=protocol)
    moved = []
    for index in range(3):
        before = weights(cell)["heads.a.weight"]
        cell.stage(index)
        moved.append((weights(cell)["heads.a.weight"] != before).any(1).tolist())
    # Classes to come learn to stay low. Class 1 comes again in the last task.
    assert moved == [[True] * 4, [False, False, True, True], [False, True, False, True]]


def test_heads_have_a_rate_of_their_own(folder: Path) -> None:
    cell = Cell(folder, SeqStar(head_lr=0.5, classifier="linear"))
    stage = cell.begin(0)
    cell.method.before_phase(stage)
    groups = cell.method.parameter_groups(stage)
    assert [group["lr"] for group in groups] == [PROTOCOL.lr, 0.5]
    assert [len(group["params"]) for group in groups] == [len(cell.start), 2]


def test_regression_heads_stay_linear_and_learn_on(folder: Path) -> None:
    cell = Cell(folder, SeqStar(classifier="cosine"), heads=("a", "a"))
    cell.model.heads["a"] = torch.nn.Linear(32, 1)
    cell.method.setup(cell.context)
    assert not isinstance(cell.model.head("a"), CosineHead)
    values = np.linspace(0.0, 5.0, 12, dtype=np.float32)
    cell.tasks = [
        replace(t, regression=True, rows=replace(t.rows, labels=values)) for t in cell.tasks
    ]
    cell.stage(0)
    before = weights(cell)["heads.a.weight"]
    cell.stage(1)
    assert not torch.equal(weights(cell)["heads.a.weight"], before)


def test_old_classes_are_remembered_where_vanilla_forgets_them(folder: Path) -> None:
    """The logits of old classes for given features do not move at all."""
    cell = growing(folder, SeqStar(warmup_epochs=1, head_lr=0.1), [[0, 1], [2, 3]])
    cell.stage(0)
    before = cell.outputs()
    cell.stage(1)
    after = cell.outputs()
    assert torch.equal(after[:, :2], before[:, :2])
    assert not torch.equal(after[:, 2:], before[:, 2:])
