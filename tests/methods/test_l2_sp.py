"""L2-SP against the formula, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights

from clbench.core.errors import PluginError
from clbench.methods.quadratic import L2SP

DENSE = "backbone.encoder.layer.1.output.dense.weight"


def pull_gradients(cell: Cell, index: int, before: float = 0.5) -> dict[str, Any]:
    """Return what the hook adds to gradients of `before`, after moving the weights."""
    stage = cell.begin(index)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
            parameter.grad = torch.full_like(parameter, before)
    cell.method.edit_gradients(stage)
    named = dict(cell.model.named_parameters())
    return {name: value.grad.double().numpy() - before for name, value in named.items()}


def double(value: torch.Tensor) -> Any:
    return value.detach().double().numpy()


def test_gradients_are_alpha_and_beta_times_the_distances(folder: Path) -> None:
    cell = Cell(folder, L2SP(alpha=0.3, beta=0.7))
    gradients = pull_gradients(cell, 0)
    now = weights(cell)
    for name, start in cell.pretrained.items():
        expected = 0.3 * (double(now[name]) - double(start))
        np.testing.assert_allclose(gradients[name], expected, atol=2e-7)
    np.testing.assert_allclose(
        gradients["heads.t0.weight"], 0.7 * double(now["heads.t0.weight"]), atol=2e-7
    )
    assert not gradients["heads.t1.weight"].any()


def test_the_pretrained_anchor_stays_and_the_previous_one_follows(folder: Path) -> None:
    for anchor in ("pretrained", "previous"):
        cell = Cell(folder, L2SP(alpha=0.3, beta=0.7, anchor=anchor), heads=("a", "a"))
        cell.stage(0)
        between = weights(cell)
        gradients = pull_gradients(cell, 1)
        now = weights(cell)
        follows = anchor == "previous"
        start = between[DENSE] if follows else cell.pretrained[DENSE]
        expected = 0.3 * (double(now[DENSE]) - double(start))
        np.testing.assert_allclose(gradients[DENSE], expected, atol=2e-7)
        head = double(now["heads.a.weight"])
        expected = 0.3 * (head - double(between["heads.a.weight"])) if follows else 0.7 * head
        np.testing.assert_allclose(gradients["heads.a.weight"], expected, atol=2e-7)


def test_a_strong_pull_keeps_the_backbone_near(folder: Path, vanilla: Cell) -> None:
    cell = Cell(folder, L2SP(alpha=100.0)).run()
    assert cell.moved() < 0.5 * vanilla.moved()
    assert cell.traces[1].curves["penalty"][-1][1] > 0


def test_both_strengths_at_0_are_refused(folder: Path) -> None:
    with pytest.raises(PluginError, match=r"penalty is always 0.*use vanilla"):
        Cell(folder, L2SP(alpha=0, beta=0)).stage(0)
