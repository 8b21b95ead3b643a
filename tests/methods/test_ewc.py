from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights

from clbench.methods.ewc import EWC, EWCOnline

LAYER = "backbone.encoder.layer.1.output.dense.weight"
ALL = {"mode": "empirical", "examples": None}


def empirical_fisher(cell: Cell, index: int) -> dict[str, torch.Tensor]:
    """Empirical Fisher of a stage's rows, one backward pass each."""
    stage = cell.open(index)
    cell.model.eval()
    parameters = dict(cell.model.named_parameters())
    fisher = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for i in range(12):
        cell.model.zero_grad()
        stage.loss(stage.data.batch(np.asarray([i]), stage.device)).backward()
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                fisher[name] += parameter.grad.square() / 12
    cell.model.zero_grad()
    return fisher


@pytest.mark.parametrize(("half", "factor"), [(True, 1.0), (False, 2.0)])
def test_the_pull_is_lambda_times_fisher_times_the_distance(
    folder: Path, half: bool, factor: float
) -> None:
    method = EWC(importance=30.0, half=half, **ALL)
    cell = Cell(folder, method)
    cell.stage(0)
    fisher, anchor = empirical_fisher(cell, 0), weights(cell)
    stage = cell.begin(1)
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=stage.rng("test")))
    method.edit_gradients(stage)
    moved = weights(cell)
    for name, parameter in cell.model.backbone.named_parameters(prefix="backbone"):
        off = (moved[name] - anchor[name]).double().numpy()
        expected = factor * 30.0 * fisher[name].double().numpy() * off
        scale = float(np.abs(expected).max()) + 1e-12
        np.testing.assert_allclose(parameter.grad, expected, rtol=2e-4, atol=1e-5 * scale)
    assert cell.model.head("t0").weight.grad is None  # no later stage trains it
    assert stage.log["penalty"][0][1] > 0


def test_the_common_anchor_has_the_gradient_of_all_penalties(folder: Path) -> None:
    method = EWC(importance=2.0, **ALL)
    cell = Cell(folder, method, heads=("a", "b", "c"))
    parts = []
    for index in (0, 1):
        cell.stage(index)
        parts.append((empirical_fisher(cell, index)[LAYER].double(), weights(cell)[LAYER].double()))
    now = weights(cell)[LAYER].double() + 0.1
    expected = sum(fisher * (now - anchor) for fisher, anchor in parts)
    merged = method.fisher[LAYER].double() * (now - method.anchor[LAYER].double())
    torch.testing.assert_close(merged, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


def test_online_decays_fisher_and_moves_the_anchor(folder: Path) -> None:
    method = EWCOnline(gamma=0.25, **ALL)
    cell = Cell(folder, method, heads=("a", "b", "c"))
    cell.stage(0)
    first = empirical_fisher(cell, 0)[LAYER]
    cell.stage(1)
    second = empirical_fisher(cell, 1)[LAYER]
    expected = 0.25 * first + second
    torch.testing.assert_close(
        method.fisher[LAYER], expected, rtol=1e-3, atol=1e-5 * float(expected.max())
    )
    assert torch.equal(method.anchor[LAYER], weights(cell)[LAYER])
    fisher = method.fisher[LAYER].clone()
    cell.stage(2)
    assert torch.equal(method.fisher[LAYER], fisher)  # nothing comes after the last stage


def test_online_decays_the_fisher_of_heads_not_in_use(folder: Path) -> None:
    method = EWCOnline(gamma=0.25, **ALL)
    cell = Cell(folder, method, heads=("a", "b", "a", "b"))
    head = "heads.a.weight"
    cell.stage(0)
    first = empirical_fisher(cell, 0)[head]
    assert float(first.max()) > 0
    cell.stage(1)
    torch.testing.assert_close(method.fisher[head], 0.25 * first, rtol=1e-3, atol=1e-9)
    cell.stage(2)
    expected = 0.0625 * first + empirical_fisher(cell, 2)[head]
    torch.testing.assert_close(method.fisher[head], expected, rtol=1e-3, atol=1e-9)
    assert torch.equal(method.anchor[head], weights(cell)[head])


def test_a_strong_pull_holds_important_weights(folder: Path) -> None:
    def moved(importance: float) -> float:
        cell = Cell(folder, EWC(importance=importance, **ALL))
        cell.stage(0)
        anchor = cell.context.snapshot()
        fisher = cell.method.fisher  # type: ignore[attr-defined]
        cell.stage(1)
        now = cell.context.snapshot()
        return sum(float((fisher[n] * (now[n] - anchor[n]).square()).sum()) for n in now)

    assert moved(1e6) < 0.5 * moved(1e-6)


def test_an_anchor_in_bf16_moves_to_the_weighted_mean() -> None:
    method = EWC()
    method.fisher = {"w": torch.tensor([1.0])}
    method.anchor = {"w": torch.tensor([0.0], dtype=torch.bfloat16)}
    method._add({"w": torch.tensor([3.0])}, {"w": torch.tensor([4.0], dtype=torch.bfloat16)})
    assert method.anchor["w"].dtype == torch.bfloat16
    assert method.anchor["w"].item() == 3.0
