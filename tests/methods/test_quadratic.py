from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from clbench.errors import PluginError
from clbench.methods import quadratic
from clbench.methods.quadratic import QuadraticPull


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.mark.parametrize(("half", "factor"), [(False, 2.0), (True, 1.0)])
@pytest.mark.parametrize("chunk", [2, 1 << 17])
def test_gradient_and_value(
    model: nn.Linear, half: bool, factor: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quadratic, "CHUNK", chunk)
    anchor = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    fisher = {name: torch.rand_like(p) for name, p in model.named_parameters()}
    pull = QuadraticPull(model, anchor, fisher, strength=7.0, half=half, name="m")
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


def test_one_number_for_all_and_at_the_anchor(model: nn.Linear) -> None:
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    pull = QuadraticPull(model, anchor, 0.5, strength=2.0, half=True, name="m")
    pull.edit_gradients()
    assert float(pull.value()) == 0.0
    assert model.weight.grad is not None
    assert float(model.weight.grad.abs().max()) == 0.0
    with torch.no_grad():
        model.weight.add_(3.0)
    pull.edit_gradients()
    torch.testing.assert_close(model.weight.grad, torch.full((2, 3), 3.0))
    model.weight.grad = None
    pull._add_fused([])
    model.weight.grad = torch.zeros(2, 3)
    pull._add_fused([0])  # as on accelerators
    torch.testing.assert_close(model.weight.grad, torch.full((2, 3), 3.0))


def test_frozen_weights_are_left_alone(model: nn.Linear) -> None:
    anchor = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    model.bias.requires_grad_(False)
    QuadraticPull(model, anchor, 1.0, strength=1.0, half=True, name="m").edit_gradients()
    assert model.bias.grad is None
    assert model.weight.grad is not None


def test_a_penalty_that_would_be_zero_is_refused(model: nn.Linear) -> None:
    anchor = {"weight": torch.zeros(2, 3)}
    ones = {"weight": torch.ones(2, 3)}
    for wrong, fisher, strength, text in [
        ({}, ones, 1.0, "names no weight"),
        (anchor, {"weight": torch.zeros(2, 3)}, 1.0, "is 0"),
        (anchor, ones, 0.0, "above 0"),
        (anchor, {"weight": torch.full((2, 3), torch.nan)}, 1.0, "finite"),
        ({"w": torch.zeros(2, 3)}, {"w": torch.ones(2, 3)}, 1.0, "has not"),
        ({"weight": torch.zeros(3, 2)}, ones, 1.0, "shape"),
        (anchor, {}, 1.0, "no importance"),
        (anchor, {"weight": torch.ones(3, 2)}, 1.0, "shape"),
    ]:
        with pytest.raises(PluginError, match=text):
            QuadraticPull(model, wrong, fisher, strength=strength, half=False, name="m")
    model.requires_grad_(False)
    with pytest.raises(PluginError, match="is 0"):
        QuadraticPull(model, anchor, ones, strength=1.0, half=False, name="m")
