"""MoFO against Adam's moments worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.cell import PROTOCOL, Cell, differ, weights

from clbench.methods.partial_updates import FilteredAdam, MoFO
from clbench.methods.selection import largest
from clbench.training.stage import Stage


def stepped(gradients: list[list[float]], fraction: float, decay: float = 0.0) -> list[float]:
    """Return four weights, 1 at first, after a step with each gradient at the rate 0.1."""
    weight = torch.nn.Parameter(torch.ones(4))
    groups = [{"params": [weight], "fraction": fraction}]
    optimizer = FilteredAdam(groups, lr=0.1, betas=(0.9, 0.99), eps=1e-12, weight_decay=decay)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    values: list[float] = weight.tolist()
    return values


def test_only_the_largest_momentum_moves() -> None:
    """In Adam's first step m̂/√v̂ is the sign of the gradient."""
    first = [1.0, -2.0, 3.0, -4.0]
    assert stepped([first], 0.5) == pytest.approx([1.0, 1.0, 0.9, 1.1])
    assert stepped([first], 0.25) == pytest.approx([1.0, 1.0, 1.0, 1.1])
    assert stepped([first], 0.01) == pytest.approx([1.0, 1.0, 1.0, 1.1])  # at least one
    assert stepped([first], 1.0) == pytest.approx([0.9, 1.1, 0.9, 1.1])


def test_all_moments_are_updated() -> None:
    """m = 0.9·0.1·g₁ + 0.1·g₂ is (1.09, -0.18, 0.27, -0.36), so the first and the last move.

    v = 0.99·0.01·g₁² + 0.01·g₂²; the corrections are 1 - 0.9² = 0.19 and 1 - 0.99² = 0.0199.
    """
    values = stepped([[1.0, -2.0, 3.0, -4.0], [10.0, 0.0, 0.0, 0.0]], 0.5)
    one = (1.09 / 0.19) / ((0.0099 + 1.0) / 0.0199) ** 0.5
    four = (-0.36 / 0.19) / (0.0099 * 16.0 / 0.0199) ** 0.5
    assert values == pytest.approx([1 - 0.1 * one, 1.0, 0.9, 1.1 - 0.1 * four])


def test_weights_that_do_not_move_do_not_decay() -> None:
    values = stepped([[1.0, -2.0, 3.0, -4.0]], 0.25, decay=0.5)
    assert values == pytest.approx([1.0, 1.0, 1.0, 0.95 + 0.1])
    assert stepped([[0.0, 0.0, 0.0, -4.0]], 0.5, decay=0.5) == values  # fewer than may move


@pytest.mark.parametrize("shape", [(7,), (5, 8), (3, 4, 5)])
def test_the_mask_has_the_largest_elements(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    moment = torch.randn(shape)
    mask = largest(moment, 0.3)
    assert int(mask.sum()) == round(0.3 * moment.numel())
    assert moment[mask].abs().min() > moment[~mask].abs().max()


def test_the_mask_of_numbers_in_bf16_has_the_largest_elements() -> None:
    moment = torch.arange(1.0, 41.0, dtype=torch.bfloat16).view(5, 8)
    moment[::2] *= -1.0
    assert torch.equal(largest(moment, 0.3), moment.abs() > 28.0)


class Watched(MoFO):
    """Counts the weights of each tensor that a step moves, as a share."""

    def before_step(self, stage: Stage) -> None:
        self._before = {n: p.detach().clone() for n, p in stage.model.named_parameters()}

    def after_step(self, stage: Stage) -> None:
        self.moved = {
            name: float((parameter != self._before[name]).float().mean())
            for name, parameter in stage.model.named_parameters()
        }


def test_a_share_of_the_backbone_moves_and_all_of_a_new_head(folder: Path) -> None:
    method = Watched(fraction=0.25)
    cell = Cell(folder, method, heads=("a", "a"), protocol=PROTOCOL)
    cell.stage(0)
    assert method.moved["backbone.encoder.layer.1.output.dense.weight"] == pytest.approx(0.25)
    assert method.moved["backbone.encoder.layer.1.output.dense.bias"] == pytest.approx(0.25)
    assert method.moved["heads.a.weight"] == 1.0
    cell.stage(1)
    assert method.moved["heads.a.weight"] == pytest.approx(0.25)


def test_the_model_stays_nearer_than_with_adam(folder: Path, vanilla: Cell) -> None:
    assert 0 < Cell(folder, MoFO(fraction=0.1)).run().moved() < 0.5 * vanilla.moved()


def test_a_fraction_of_1_is_vanilla(folder: Path, vanilla: Cell) -> None:
    assert not MoFO(fraction=1.0).acts_in(1)
    assert not differ(Cell(folder, MoFO(fraction=1.0)).run(), vanilla)


def test_weights_without_momentum_stay(folder: Path) -> None:
    cell = Cell(folder, MoFO())
    before = weights(cell)["backbone.embeddings.word_embeddings.weight"]
    cell.run()
    table = weights(cell)["backbone.embeddings.word_embeddings.weight"]
    assert torch.equal(table[20:], before[20:])  # no row has these tokens
    assert not torch.equal(table[:20], before[:20])
