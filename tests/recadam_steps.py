"""Parameters, gradients and anchors that the tests of RecAdam share, and its formula in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clbench.optim import RecAdam

SHAPES = ((7, 3), (5,), (2, 2, 2))


def parameters(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[nn.Parameter]:
    rng = np.random.default_rng(seed)
    return [nn.Parameter(torch.tensor(rng.normal(size=shape), dtype=dtype)) for shape in SHAPES]


def anchors(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [p.detach() for p in parameters(dtype, seed=9)]


def set_gradients(params: list[nn.Parameter], step: int) -> None:
    rng = np.random.default_rng(100 + step)
    for p in params:
        p.grad = torch.tensor(rng.normal(size=tuple(p.shape)), dtype=p.dtype)


def train(
    optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int, first: int = 0
) -> list[Tensor]:
    for step in range(first, first + steps):
        set_gradients(params, step)
        optimizer.step()
    return [p.detach().clone() for p in params]


def transcription(
    steps: int,
    lam: Any,
    *,
    lr: Any,
    gamma: float,
    decay: float = 0.0,
    eps: float = 1e-8,
    beta1: float = 0.9,
    beta2: float = 0.999,
) -> list[np.ndarray]:
    """The published step in NumPy, written without a look at the package."""
    theta = [p.detach().numpy().copy() for p in parameters()]
    star = [a.numpy() for a in anchors()]
    m = [np.zeros_like(x) for x in theta]
    v = [np.zeros_like(x) for x in theta]
    for t in range(1, steps + 1):
        rng = np.random.default_rng(100 + t - 1)
        rate = lr(t) if callable(lr) else lr
        weight = lam(t)
        for i, x in enumerate(theta):
            g = rng.normal(size=x.shape)
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g**2
            mhat, vhat = m[i] / (1 - beta1**t), v[i] / (1 - beta2**t)
            x = x - rate * weight * decay * x
            x = x - rate * weight * mhat / (np.sqrt(vhat) + eps)
            theta[i] = x - rate * (1 - weight) * gamma * (x - star[i])
    return theta


def make(params: list[nn.Parameter], **options: Any) -> RecAdam:
    return RecAdam(params, **{"lr": 1e-3, "gamma": 100.0, "t0": 8, "k": 0.5, **options})
