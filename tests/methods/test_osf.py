"""OSF on matrices whose singular vectors are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.cell import PROTOCOL, Cell, weights
from helpers.checkpoints import make_checkpoint

from clbench.methods.partial_updates import OSF
from clbench.training.protocol import Protocol

QUERY = "backbone.encoder.layer.0.attention.self.query.weight"
WIDE = "backbone.encoder.layer.0.intermediate.dense.weight"


def set_diagonal(cell: Cell, name: str, values: torch.Tensor) -> None:
    """Make a matrix diagonal: its singular vectors are unit vectors, in the order of `values`."""
    weight = dict(cell.model.named_parameters())[name]
    with torch.no_grad():
        weight.zero_()
        weight.diagonal().copy_(values)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_training_changes_the_block_of_small_singular_values_only(
    folder: Path, decay: float
) -> None:
    """With values 32, 31 … 1 and a quarter preserved, rows and columns 0 to 7 stay."""
    protocol = Protocol(**{**PROTOCOL.model_dump(), "weight_decay": decay})
    cell = Cell(folder, OSF(preserve=0.25), protocol=protocol)
    for name in (QUERY, WIDE):
        set_diagonal(cell, name, torch.arange(32.0, 0.0, -1.0))
    before = weights(cell)
    cell.stage(0)
    after = weights(cell)
    for name in (QUERY, WIDE):
        change = (after[name] - before[name]).abs()
        assert change[:8].max() < 1e-5
        assert change[:, :8].max() < 1e-5
        assert change[8:, 8:].median() > 1e-4
    moved = {n for n in before if n.startswith("backbone.") and not before[n].equal(after[n])}
    assert moved == set(cell.method._weights)  # no bias, norm or embedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_and_changes_are_projected(folder: Path, dtype: torch.dtype) -> None:
    """Of ones, only rows and columns from 16 on remain."""
    cell = Cell(folder, OSF(preserve=0.5))
    cell.model.to(dtype)
    set_diagonal(cell, WIDE, torch.arange(32.0, 0.0, -1.0))
    stage = cell.begin(0)
    weight = dict(cell.model.named_parameters())[WIDE]
    weight.grad = torch.ones(48, 32, dtype=dtype)
    cell.method.edit_gradients(stage)
    expected = torch.zeros(48, 32, dtype=dtype)
    expected[16:, 16:] = 1.0
    torch.testing.assert_close(weight.grad, expected)
    before = weight.detach().clone()
    with torch.no_grad():
        weight += 1.0
    cell.method.after_step(stage)
    torch.testing.assert_close(weight.detach(), before + expected)


def test_every_stage_decomposes_the_matrices_anew(folder: Path) -> None:
    """In task 1 of 4 a quarter is preserved, in task 2 a half: of what is largest then."""
    cell = Cell(folder, OSF(), heads=("a", "b", "c", "d"))
    for index, values, kept in (
        (1, torch.arange(32.0, 0.0, -1.0), range(8)),
        (2, torch.arange(1.0, 33.0), range(16, 32)),
    ):
        set_diagonal(cell, QUERY, values)
        before = weights(cell)
        cell.stage(index)
        change = (weights(cell)[QUERY] - before[QUERY]).abs().diagonal()
        rest = sorted(set(range(32)) - set(kept))
        assert change[list(kept)].max() < 1e-5
        assert change[rest].median() > 1e-4


def test_the_first_task_trains_as_vanilla_if_the_share_grows() -> None:
    assert not OSF().acts_in(0)
    assert OSF().acts_in(1)
    assert OSF(preserve=0.5).acts_in(0)


def test_a_large_share_preserves_the_outputs_of_earlier_tasks(folder: Path) -> None:
    moved = []
    for share in (0.05, 0.95):
        cell = Cell(folder, OSF(preserve=share, lr=3e-3))
        cell.stage(0)
        before = cell.scored(0)
        cell.stage(1)
        moved.append(float((cell.scored(0) - before).abs().mean()))
    assert 0 < moved[1] < 0.5 * moved[0]


def test_convolutions_are_decomposed_by_output(tmp_path: Path) -> None:
    cell = Cell(make_checkpoint("deberta-v2", tmp_path), OSF(preserve=0.5))
    name = next(name for name, weight in cell.method._weights.items() if weight.dim() == 3)
    before = weights(cell)[name].flatten(1).double()
    left, values, right = torch.linalg.svd(before, full_matrices=False)
    rank = len(values) // 2
    cell.stage(0)
    change = weights(cell)[name].flatten(1).double() - before
    assert change.abs().max() > 1e-4
    assert (left[:, :rank].T @ change).norm() < 1e-3 * change.norm()
    assert (change @ right[:rank].T).norm() < 1e-3 * change.norm()
