"""R-EWC against numbers worked out by hand, and against EWC in the model's own coordinates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights
from helpers.checkpoints import make_checkpoint

from clbench.fisher.diagonal import diagonal_fisher
from clbench.fisher.squares import Outer, rotate, rotate_back, rotate_outer
from clbench.methods.ewc import REWC, EWCOnline, carry_over, dense_layers
from clbench.methods.quadratic import QuadraticPull
from clbench.training.device import Precision

DIAGONAL = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2.0)
"""Axes along (1, 1) and (1, -1)."""


class Sum(torch.nn.Module):
    """One output, (2, 3)·(x + shift) + 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[2.0, 3.0]]))
            self.layer.bias.zero_()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(inputs)
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_pull_by_hand(dtype: torch.dtype) -> None:
    """½·10·3·s² with s = (d₁ + d₂)/√2; the other axis, (1, -1), is free."""
    model = Sum().to(dtype)
    anchor = {
        "layer.weight": torch.tensor([[1.0, 1.0]], dtype=dtype),
        "layer.bias": torch.tensor([1.0], dtype=dtype),
    }
    importance = {"layer.weight": torch.tensor([[3.0, 0.0]]), "layer.bias": torch.tensor([2.0])}
    rotations = {"layer.weight": (None, DIAGONAL)}
    pull = QuadraticPull(model, anchor, importance, strength=10.0, half=True, rotations=rotations)
    # d = (1, 2), s² = 9/2: 15·9/2, and 5·2·1 for the bias.
    assert pull.value().item() == pytest.approx(67.5 + 10.0)
    pull.edit_gradients()
    # 10·3·s along (1, 1)/√2 is 30·3/2 in either number.
    torch.testing.assert_close(model.layer.weight.grad, torch.tensor([[45.0, 45.0]], dtype=dtype))
    torch.testing.assert_close(model.layer.bias.grad, torch.tensor([-20.0], dtype=dtype))


def loss(model: Any, batch: Any) -> Any:
    return model(batch["x"]).squeeze(-1).sum(-1) * batch["g"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["empirical", "batched"])
def test_the_fisher_along_axes_by_hand(mode: Any, dtype: torch.dtype) -> None:
    """Inputs along (1, 1) with the gradient g: the other axis gets nothing.

    In the layer's own coordinates both numbers are alike, and EWC cannot tell that.
    """
    x = torch.tensor([[[1.0, 1.0]], [[3.0, 3.0]], [[-2.0, -2.0]]], dtype=dtype)
    batches = [{"x": x[i : i + 1], "g": torch.tensor([g])} for i, g in enumerate((1.0, 2.0, -1.0))]
    model = Sum().to(dtype)
    plain = diagonal_fisher(model, batches, loss, mode)["layer.weight"]
    rotations = {"layer.weight": (None, DIAGONAL)}
    rotated = diagonal_fisher(model, batches, loss, mode, rotations=rotations)["layer.weight"]
    # g²x² is 1, 36 and 4 in either coordinate.
    torch.testing.assert_close(plain, torch.tensor([[41.0, 41.0]]) / 3)
    torch.testing.assert_close(rotated, torch.tensor([[82.0, 0.0]]) / 3)


def test_carrying_over_by_hand() -> None:
    """Old axes e₁, e₂ on the right, new ones turned by 60° and 30°: shares 1/4 and 3/4."""
    half, root = 0.5, math.sqrt(3.0) / 2
    after = torch.tensor([[half, -root], [root, half]])
    fisher = torch.tensor([[8.0, 4.0]])
    value = carry_over(fisher, (None, torch.eye(2)), (None, after))
    torch.testing.assert_close(value, torch.tensor([[2.0 + 3.0, 6.0 + 1.0]]))
    value = carry_over(fisher.T, (torch.eye(2), None), (after, None))
    torch.testing.assert_close(value, torch.tensor([[5.0], [7.0]]))
    same = carry_over(fisher, (None, after), (None, after))
    torch.testing.assert_close(same, fisher)


@pytest.fixture(scope="module", params=["bert", "gpt2", "albert"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cell:
    folder = make_checkpoint(request.param, tmp_path_factory.mktemp(request.param))
    cell = Cell(folder, REWC(mode="empirical", examples=None, sides="both"))
    cell.train(0)
    cell.before = weights(cell)  # type: ignore[attr-defined]
    cell.method.after_stage(cell.open(0))
    return cell


def exact_squares(cell: Cell, name: str) -> Any:
    """Return the gradient of each row's loss for a matrix, shape (12, o, i)."""
    stage = cell.open(0)
    cell.model.eval()
    weight = dict(cell.model.named_parameters())[name]
    gradients = []
    for row in range(12):
        value = stage.loss(stage.data.batch(np.array([row]), stage.device))
        gradients.append(torch.autograd.grad(value, weight)[0])
    return torch.stack(gradients)


def test_axes_are_orthogonal_and_the_model_is_unchanged(trained: Cell) -> None:
    for name, value in weights(trained).items():
        assert torch.equal(value, trained.before[name])  # type: ignore[attr-defined]
    layers = dense_layers(trained.open(0), trained.method.fisher)
    assert trained.method.rotations.keys() == layers.keys()
    for name, rotation in trained.method.rotations.items():
        for axes in rotation:
            torch.testing.assert_close(axes.T @ axes, torch.eye(len(axes)), atol=1e-5, rtol=0)
        value = weights(trained)[name]
        again = rotate_back(rotate(value, rotation), rotation)
        torch.testing.assert_close(again, value, atol=1e-5, rtol=1e-5)


def test_the_fisher_is_that_of_rotated_gradients_and_closer_to_diagonal(trained: Cell) -> None:
    share = {"own": 0.0, "rotated": 0.0}
    for name, rotation in trained.method.rotations.items():
        gradients = exact_squares(trained, name)
        own = gradients.square().mean(0)
        left, right = rotation
        rotated = (left.T @ gradients @ right).square().mean(0)
        atol = 1e-4 * float(rotated.max())
        torch.testing.assert_close(trained.method.fisher[name], rotated, rtol=2e-2, atol=atol)
        assert float(rotated.sum()) == pytest.approx(float(own.sum()), rel=1e-3)
        # The sum of all squared entries of the whole Fisher matrix does not depend on the axes.
        flat = gradients.flatten(1)
        whole = float((flat @ flat.T / 12).square().sum())
        share["own"] += float(own.square().sum()) / whole
        share["rotated"] += float(rotated.square().sum()) / whole
    assert share["rotated"] > 2 * share["own"]


def test_other_weights_have_ewcs_fisher(folder: Path) -> None:
    cell, plain = (Cell(folder, kind(mode="empirical")) for kind in (REWC, EWCOnline))
    for each in (cell, plain):
        each.stage(0)
    for name, value in cell.method.fisher.items():
        if name not in cell.method.rotations:
            torch.testing.assert_close(value, plain.method.fisher[name])
    assert any("LayerNorm" in name or "heads." in name for name in cell.method.fisher)


def test_narrow_rotates_the_smaller_side(folder: Path) -> None:
    cell = Cell(folder, REWC())
    cell.stage(0)
    for name, (left, right) in cell.method.rotations.items():
        rows, columns = weights(cell)[name].shape
        assert (left is not None) == (rows <= columns)
        assert (right is not None) == (columns <= rows)


def test_three_tasks_add_up(folder: Path) -> None:
    """The sum of the Fisher information of a matrix does not depend on its axes."""
    sums = {}
    for gamma in (0.0, 0.5):
        cell = Cell(
            folder, REWC(mode="empirical", gamma=gamma, importance=1.0), heads=("a", "b", "a")
        )
        sums[gamma] = []
        for index in range(2):
            cell.stage(index)
            name = next(iter(cell.method.rotations))
            sums[gamma].append(float(cell.method.fisher[name].sum()))
        cell.stage(2)
    # Stage 1 hardly pulls at importance 1, so that the second task's own sum is about the same.
    expected = 0.5 * sums[0.5][0] + sums[0.0][1]
    assert sums[0.5][1] == pytest.approx(expected, rel=1e-3)


def test_bf16_gives_about_the_same_fisher(folder: Path) -> None:
    cells = [Cell(folder, REWC(mode="empirical")) for _ in range(2)]
    cells[1].context.precision = Precision("bf16", "cpu")
    sums = []
    for cell in cells:
        cell.method.after_stage(cell.open(0))
        sums.append(sum(float(cell.method.fisher[name].sum()) for name in cell.method.rotations))
    assert sums[1] == pytest.approx(sums[0], rel=0.1)


def test_rotated_gradients_have_one_precision() -> None:
    """Products of float32 and bfloat16 are refused on accelerators."""
    part = Outer(torch.ones(1, 2, 2, dtype=torch.bfloat16), torch.ones(1, 2, 3).bfloat16())
    assert {side.dtype for side in rotate_outer(part, (DIAGONAL, None))} == {torch.float32}


def test_regression_has_axes_too(folder: Path) -> None:
    cell = Cell(folder, REWC(), heads=("a", "b"))
    cell.regress(0)
    cell.run()
    assert cell.method.rotations
    assert all(torch.isfinite(value).all() for value in weights(cell).values())


def test_a_strong_pull_keeps_outputs_better_than_ewc_of_equal_strength(folder: Path) -> None:
    moved = {}
    for kind in (EWCOnline, REWC):
        cell = Cell(folder, kind(importance=300.0, mode="sampled", examples=None))
        cell.stage(0)
        before = cell.outputs()
        cell.stage(1)
        moved[kind] = float((cell.outputs() - before).square().mean())
    assert moved[REWC] < moved[EWCOnline]
