from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from clbench.core.errors import PluginError
from clbench.methods import quadratic
from clbench.methods.quadratic import QuadraticPull


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.mark.parametrize(("half", "factor"), [(False, 2.0), (True, 1.0)])
@pytest.mark.parametrize("chunk", [2, 1 << 17])
def test_gradient_and_value_equal_the_formula(
    model: nn.Linear, half: bool, factor: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quadratic, "CHUNK", chunk)
    anchor = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    fisher = {name: torch.rand_like(p) for name, p in model.named_parameters()}
    pull = QuadraticPull(model, anchor, fisher, strength=7.0, half=half)
    model.weight.grad = torch.ones_like(model.weight)
    pull.edit_gradients()
    total = 0.0
    for name, parameter in model.named_parameters():
        off = parameter.detach().numpy().astype(np.float64) - anchor[name].numpy()
        weighted = 7.0 * fisher[name].numpy().astype(np.float64) * off
        before = 1.0 if name == "weight" else 0.0  # the bias had no gradient
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad.numpy(), before + factor * weighted, rtol=1e-5)
        total += factor / 2 * float((weighted * off).sum())
    assert float(pull.value()) == pytest.approx(total, rel=1e-5)


def test_scalar_importance_and_the_accelerators_path(model: nn.Linear) -> None:
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    half = dict.fromkeys(anchor, torch.tensor(0.5))
    pull = QuadraticPull(model, anchor, half, strength=2.0, half=True)
    pull.edit_gradients()
    assert float(pull.value()) == 0.0  # at the anchor
    assert model.weight.grad is not None
    assert not model.weight.grad.any()
    with torch.no_grad():
        model.weight.add_(3.0)
    pull.edit_gradients()
    torch.testing.assert_close(model.weight.grad, torch.full((2, 3), 3.0))
    model.weight.grad = torch.zeros(2, 3)
    pull._add_fused([0])
    torch.testing.assert_close(model.weight.grad, torch.full((2, 3), 3.0))


def test_frozen_weights_are_left_alone(model: nn.Linear) -> None:
    anchor = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    model.bias.requires_grad_(False)
    pull = QuadraticPull(
        model, anchor, dict.fromkeys(anchor, torch.tensor(1.0)), strength=1.0, half=True
    )
    pull.edit_gradients()
    assert model.bias.grad is None
    assert model.weight.grad is not None


@pytest.mark.parametrize(
    ("importance", "strength", "message"),
    [
        (torch.zeros(2, 3), 1.0, "always 0"),
        (torch.ones(2, 3), 0.0, "always 0"),
        (torch.full((2, 3), torch.nan), 1.0, "importance of weight is not a finite number"),
        (torch.full((2, 3), torch.inf), 1.0, "importance of weight is not a finite number"),
    ],
)
def test_a_penalty_that_is_always_0_or_not_finite_is_refused(
    model: nn.Linear, importance: torch.Tensor, strength: float, message: str
) -> None:
    anchor = {"weight": torch.zeros(2, 3)}
    with pytest.raises(PluginError, match=message):
        QuadraticPull(model, anchor, {"weight": importance}, strength=strength, half=False)


def test_a_penalty_on_frozen_weights_or_on_none_is_refused(model: nn.Linear) -> None:
    model.requires_grad_(False)
    for anchor in ({}, {"weight": torch.zeros(2, 3)}):
        with pytest.raises(PluginError, match="always 0"):
            QuadraticPull(model, anchor, {"weight": torch.ones(2, 3)}, strength=1.0, half=False)
