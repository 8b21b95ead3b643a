"""SAM against gradients worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights
from torch import Tensor

from clbench.core.errors import SettingsError
from clbench.methods.adversarial import Sam
from clbench.training.protocol import Protocol


def stage_of(weight: Tensor, loss: Callable[[Tensor], Tensor]) -> Any:
    """Return what SAM uses of a stage, for a model with one weight."""
    return SimpleNamespace(
        loss=lambda batch, weights=None: loss(weights["w"] if weights else weight),
        trainable_weights=lambda: {"w": weight},
        restart_dropout=lambda: None,
        sample=lambda name, value: None,
    )


def gradient(method: Sam, stage: Any) -> Tensor:
    (weight,) = stage.trainable_weights().values()
    weight.grad = None
    method.loss(stage, None).backward()  # type: ignore[arg-type]
    method.edit_gradients(stage)
    assert weight.grad is not None
    return weight.grad


def test_the_gradient_is_that_at_the_nearby_weights() -> None:
    """L = (3·w₁² + 2·w₂²)/2 at (1, 2): g = (3, 4), and θ + ρ·g/5 = (1.3, 2.4) with ρ = 0.5."""
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    curvature = torch.tensor([3.0, 2.0])
    stage = stage_of(weight, lambda w: (curvature * w.square()).sum() / 2)
    torch.testing.assert_close(gradient(Sam(rho=0.5), stage), torch.tensor([3.9, 4.8]))
    assert weight.tolist() == [1.0, 2.0]


def test_no_gradient_leaves_no_gradient() -> None:
    weight = torch.zeros(2, requires_grad=True)
    stage = stage_of(weight, lambda w: w.square().sum())
    assert gradient(Sam(), stage).tolist() == [0.0, 0.0]


def test_a_narrow_minimum_is_left() -> None:
    """The minimum at -1 is about 0.1 wide; plain descent stays in it, SAM moves out."""
    ends = []
    for rho in (1e-6, 0.5):
        weight = torch.tensor([-0.95], requires_grad=True)
        stage = stage_of(weight, narrow_and_wide)
        for _ in range(500):
            slope = gradient(Sam(rho=rho), stage)
            with torch.no_grad():
                weight -= 0.005 * slope
        ends.append(weight.item())
    assert ends[0] == pytest.approx(-1.0, abs=0.01)
    assert ends[1] > -0.6


def narrow_and_wide(weight: Tensor) -> Tensor:
    wells = torch.exp(-50 * (weight + 1) ** 2) + torch.exp(-0.5 * (weight - 1) ** 2)
    return -wells.sum()


def test_weights_in_bf16_are_refused() -> None:
    Sam().check_protocol(Protocol(head="language-model"))
    with pytest.raises(SettingsError, match=r"perturbation is lost in bf16. Set weights = "):
        Sam().check_protocol(Protocol(head="language-model", weights="bf16"))


def test_both_passes_drop_the_same_units(folder: Path) -> None:
    method = Sam(rho=1e-9)
    cell = Cell(folder, method)
    stage = cell.begin(0)
    batch = stage.data.batch(np.arange(6), stage.device)
    cell.model.train()
    stage.restart_dropout()
    method.loss(stage, batch).backward()  # type: ignore[no-untyped-call]
    before = weights(cell)
    first = {n: p.grad.clone() for n, p in cell.model.named_parameters() if p.grad is not None}
    method.edit_gradients(stage)
    for name, parameter in cell.model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert (parameter.grad is None) == (name not in first)
        if name in first:
            torch.testing.assert_close(parameter.grad, first[name], rtol=1e-4, atol=1e-7)


def test_weights_that_need_no_gradient_count_in_no_norm(folder: Path) -> None:
    """With all but the head frozen, the head's bias moves by ρ·g/‖g‖ of the head."""
    method = Sam(rho=0.3)
    cell = Cell(folder, method)
    cell.model.backbone.requires_grad_(False)
    stage = cell.begin(0)
    batch = stage.data.batch(np.arange(6), stage.device)
    cell.model.eval()
    method.loss(stage, batch).backward()  # type: ignore[no-untyped-call]
    head = dict(cell.model.head("t0").named_parameters())
    slopes = {name: p.grad.double() for name, p in head.items()}
    norm = float(sum(slope.square().sum() for slope in slopes.values())) ** 0.5
    method.edit_gradients(stage)
    found = {name: p.grad.clone() for name, p in head.items()}
    with torch.no_grad():
        for name, parameter in head.items():
            parameter += (0.3 / norm * slopes[name]).float()
            parameter.grad = None
    stage.loss(batch).backward()  # type: ignore[no-untyped-call]
    for name, parameter in head.items():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-7)


def test_the_sharpness_is_recorded(folder: Path) -> None:
    stage, _ = Cell(folder, Sam(rho=0.5)).stage(0)
    assert len(stage.log["sharpness"]) == 6
    assert min(value for _, value in stage.log["sharpness"]) > 0
