"""Rules for layers, against gradients formed by hand."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

from clbench.fisher.per_example import rule_of
from clbench.fisher.squares import Outer, add_squares


@pytest.mark.parametrize("conv", [False, True])
def test_only_tokens_to_which_something_flows_back_are_multiplied(conv: bool) -> None:
    layer = hf.pytorch_utils.Conv1D(12, 10) if conv else nn.Linear(10, 12)
    rule = rule_of(layer)
    assert rule is not None
    torch.manual_seed(0)
    entered, back = torch.randn(3, 9, 10), torch.randn(3, 9, 12)
    back[0, 2:] = 0.0
    back[1, [0, 4, 8]] = 0.0  # six are left, of nine
    back[2, 1:, :11] = 0.0
    back[2, 3:] = 0.0
    (_, outer), _ = rule(layer, entered, back)
    assert isinstance(outer, Outer)
    assert outer.left.shape[1] == 6
    total, exact = torch.zeros_like(layer.weight), torch.zeros_like(layer.weight)
    with torch.no_grad():
        add_squares(total, [outer])
    for e, b in zip(entered, back, strict=True):
        exact += (e.T @ b if conv else b.T @ e).square()
    torch.testing.assert_close(total, exact)
    none_at_all = rule(layer, entered, torch.zeros_like(back))[0][1]
    with torch.no_grad():
        add_squares(total, [none_at_all])
    torch.testing.assert_close(total, exact)
