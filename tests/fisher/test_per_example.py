"""Rules for layers, against gradients formed by hand."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

from clbench.fisher.per_example import rule_of
from clbench.fisher.squares import Outer, add_squares


@pytest.mark.parametrize("conv", [False, True])
def test_only_tokens_with_a_gradient_are_multiplied(conv: bool) -> None:
    layer = hf.pytorch_utils.Conv1D(12, 10) if conv else nn.Linear(10, 12)
    rule = rule_of(layer)
    assert rule is not None
    torch.manual_seed(0)
    inputs, grad = torch.randn(3, 9, 10), torch.randn(3, 9, 12)
    grad[0, 2:] = 0.0
    grad[1, [0, 4, 8]] = 0.0  # leaves six of nine
    grad[2, 1:, :11] = 0.0
    grad[2, 3:] = 0.0
    (_, outer), _ = rule(layer, inputs, grad)
    assert isinstance(outer, Outer)
    assert outer.left.shape[1] == 6
    total, exact = torch.zeros_like(layer.weight), torch.zeros_like(layer.weight)
    with torch.no_grad():
        add_squares(total, [outer])
    for e, b in zip(inputs, grad, strict=True):
        exact += (e.T @ b if conv else b.T @ e).square()
    torch.testing.assert_close(total, exact)
    zero = rule(layer, inputs, torch.zeros_like(grad))[0][1]
    with torch.no_grad():
        add_squares(total, [zero])
    torch.testing.assert_close(total, exact)
