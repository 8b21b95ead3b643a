"""L2-SP against the formula, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cell import Cell, weights

from clbench.errors import SettingsError
from clbench.methods.l2_sp import L2SP

DENSE = "backbone.encoder.layer.1.output.dense.weight"


def pulled(cell: Cell, index: int, given: float = 0.5) -> dict[str, np.ndarray[Any, Any]]:
    """Gradients after the hook, less the gradient `given` before it, in a stage just begun."""
    stage = cell.open(index)
    stage.total_steps = stage.steps = 6
    cell.method.before_stage(stage)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
            parameter.grad = torch.full_like(parameter, given)
    cell.method.edit_gradients(stage)
    every = dict(cell.model.named_parameters())
    return {name: value.grad.double().numpy() - given for name, value in every.items()}


def double(value: torch.Tensor) -> Any:
    return value.detach().double().numpy()


def test_gradient_of_both_terms(folder: Path) -> None:
    cell = Cell(folder, L2SP(alpha=0.3, beta=0.7))
    found = pulled(cell, 0)
    now = weights(cell)
    for name, start in cell.pretrained.items():
        by_hand = 0.3 * (double(now[name]) - double(start))
        np.testing.assert_allclose(found[name], by_hand, atol=2e-7)
    np.testing.assert_allclose(
        found["heads.t0.weight"], 0.7 * double(now["heads.t0.weight"]), atol=2e-7
    )
    assert not found["heads.t1.weight"].any()


def test_the_pretrained_anchor_stays_and_the_previous_one_follows(folder: Path) -> None:
    for anchor in ("pretrained", "previous"):
        cell = Cell(folder, L2SP(alpha=0.3, beta=0.7, anchor=anchor), heads=("a", "a"))
        cell.stage(0)
        between = weights(cell)
        found = pulled(cell, 1)
        now = weights(cell)
        follows = anchor == "previous"
        start = between[DENSE] if follows else cell.pretrained[DENSE]
        by_hand = 0.3 * (double(now[DENSE]) - double(start))
        np.testing.assert_allclose(found[DENSE], by_hand, atol=2e-7)
        head = double(now["heads.a.weight"])
        by_hand = 0.3 * (head - double(between["heads.a.weight"])) if follows else 0.7 * head
        np.testing.assert_allclose(found["heads.a.weight"], by_hand, atol=2e-7)


def test_a_strong_pull_keeps_the_backbone_near(folder: Path, vanilla: Cell) -> None:
    held = Cell(folder, L2SP(alpha=100.0)).run()
    assert held.moved() < 0.5 * vanilla.moved()
    assert held.traces[1].curves["penalty"][-1][1] > 0


def test_no_strength_at_all_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"both 0.*use vanilla"):
        L2SP(alpha=0, beta=0)
    L2SP(alpha=0.0)
