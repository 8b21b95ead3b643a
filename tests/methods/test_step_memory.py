"""The memory of a training step, counted tensor by tensor."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell
from torch import nn

from clbench.methods.anchors import RecAdam
from clbench.methods.base import Frozen, Method
from clbench.methods.ewc import EWC
from clbench.training.memory import StepMemory

MIB = 2**20


def peak_of(model: nn.Module, method: Any) -> int:
    """Return the peak bytes of two steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    memory = StepMemory(torch.device("cpu"))
    for _ in range(2):
        with memory.measure(model, method, optimizer):
            model(torch.ones(1, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return memory.peak


def test_weights_moments_gradients_and_what_the_method_holds_count_once() -> None:
    model = nn.Sequential(nn.Linear(512, 512, bias=False))  # 1 MiB
    # Weights, two moments, a gradient; the rest are a few kilobytes of activations.
    plain = peak_of(model, SimpleNamespace())
    assert plain == pytest.approx(4 * MIB, abs=32_000)
    anchor = torch.zeros(512, 512)
    holding = SimpleNamespace(
        model=model, weights=list(model.parameters()), anchor=anchor, view=anchor[:3],
        teacher=copy.deepcopy(model), rows=np.zeros((512, 512), np.float32),
    )  # fmt: skip
    assert peak_of(model, holding) - plain == 3 * MIB  # anchor, teacher and rows


def test_temporaries_within_a_step_count_at_its_peak() -> None:
    class Wide(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            torch.ones(8 * MIB, dtype=torch.uint8)  # gone at once
            return super().forward(inputs)

    narrow = peak_of(nn.Linear(512, 512, bias=False), SimpleNamespace())
    wide = peak_of(Wide(512, 512, bias=False), SimpleNamespace())
    # At that moment weights and moments exist, but the gradient does not yet.
    assert wide - narrow == pytest.approx(7 * MIB, abs=32_000)


def test_methods_add_their_own_tensors_to_those_of_vanilla(folder: Path, vanilla: Cell) -> None:
    def extra(method: Method) -> float:
        """Bytes of the second stage beyond vanilla's, in copies of the shared weights."""
        cell, again = Cell(folder, method).run(), Cell(folder, type(method)()).run()
        first, second, plain = (each.traces[1].memory_mb or 0 for each in (cell, again, vanilla))
        assert first == second
        weights = sum(value.numel() for value in cell.pretrained.values())
        return (first - plain) * 1e6 / (4 * weights)

    assert extra(RecAdam()) == pytest.approx(1.0, abs=0.01)  # the anchor
    assert extra(EWC()) > 2.0  # anchor and Fisher, and what its penalty takes for a moment
    assert extra(Frozen()) < -2.0  # no moments and no gradients
