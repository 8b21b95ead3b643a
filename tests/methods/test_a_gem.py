from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cell import Cell

from clbench.methods.replay import AGem, project


def test_projection_follows_equation_11() -> None:
    """Equation 11: g = (1, 1, 0), r = (-2, 0, 1): g·r = -2, r·r = 5, so g + 0.4 r."""
    g = [torch.tensor([1.0, 1.0]), torch.tensor([0.0])]
    r = [torch.tensor([-2.0, 0.0]), torch.tensor([1.0])]
    assert float(project(g, r)) == -2.0
    torch.testing.assert_close(torch.cat(g), torch.tensor([0.2, 1.0, 0.4]))
    assert float(torch.cat(g) @ torch.cat(r)) == pytest.approx(0.0, abs=1e-7)


def test_no_conflict_and_a_zero_reference_change_nothing() -> None:
    g = [torch.tensor([1.0, 1.0])]
    assert float(project(g, [torch.tensor([2.0, -1.0])])) == 1.0
    project(g, [torch.zeros(2)])
    assert g[0].tolist() == [1.0, 1.0]


def test_projection_equals_numpy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        g, r = rng.normal(size=(2, 30))
        expected = g - min(0.0, g @ r) / (r @ r) * r
        parts = [torch.tensor(p) for p in np.split(g, 3)]
        project(parts, [torch.tensor(p) for p in np.split(r, 3)])
        np.testing.assert_allclose(torch.cat(parts).numpy(), expected, rtol=1e-10)


def test_heads_of_their_own_are_left_alone_and_conflicts_are_counted(folder: Path) -> None:
    class Watched(AGem):
        def edit_gradients(self, stage):  # type: ignore[no-untyped-def]
            before = stage.model.head("t1").weight.grad.clone() if stage.index else None
            super().edit_gradients(stage)
            if before is not None:
                assert torch.equal(before, stage.model.head("t1").weight.grad)
                assert stage.model.head("t0").weight.grad is None

    method = Watched(memory=8)
    cell = Cell(folder, method)
    cell.stage(0)
    stage, _ = cell.stage(1)
    assert "projected_share" in stage.log
    assert all(0.0 <= value <= 1.0 for _, value in stage.log["projected_share"])
    assert stage.log["projected_share"][-1][1] > 0.0
