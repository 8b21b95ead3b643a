"""Gradient clipping, and the points at which a stage is scored for curves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clbench.training.engine import clip_gradients, scored_steps


def weights(scale: float, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(40, 30), (7,), (3, 5, 2)]
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = scale * torch.randn(
            parameter.shape, generator=generator, dtype=torch.float64
        ).to(dtype)
    parameters[0].grad = parameters[0].grad.t().contiguous().t()  # column-major
    return [*parameters, nn.Parameter(torch.zeros(4))]  # and one without a gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.001, 1.0, 1e4])
def test_clipping_equals_torchs(scale: float, dtype: torch.dtype) -> None:
    ours, theirs = weights(scale, dtype), weights(scale, dtype)
    clip_gradients(ours, 1.0)
    nn.utils.clip_grad_norm_(theirs, 1.0)
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(
            mine.grad, other.grad, rtol=1e-2 if mine.dtype == torch.bfloat16 else 1e-5, atol=0.0
        )
    assert ours[-1].grad is None


def test_gradients_within_the_norm_are_not_touched() -> None:
    ours, untouched = weights(0.001), weights(0.001)
    clip_gradients(ours, 1.0)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours[:-1], untouched[:-1], strict=True))


def test_clipping_accepts_weights_without_gradients() -> None:
    clip_gradients([nn.Parameter(torch.zeros(3))], 1.0)


def test_scored_steps_are_evenly_spread_and_include_both_ends() -> None:
    grid = [0, 10, 20, 30, 40]
    assert scored_steps(grid, 100) == grid
    assert scored_steps(grid, 3) == [0, 20, 40]
    assert scored_steps(grid, 2) == [0, 40]
    assert scored_steps(grid, 1) == scored_steps([], 9) == []
