"""The memory of a training step, counted tensor by tensor."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cell import Cell
from torch import nn

from clbench.methods.base import Method
from clbench.methods.ewc import EWC
from clbench.methods.frozen import Frozen
from clbench.methods.recadam import RecAdam
from clbench.training.memory import StepMemory

MIB = 2**20


def counted(model: nn.Module, method: Any) -> int:
    """Bytes of two steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    memory = StepMemory(torch.device("cpu"))
    for _ in range(2):
        with memory.counted(model, method, optimizer):
            model(torch.ones(1, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return memory.peak


def test_weights_moments_gradients_and_what_the_method_holds_count_once() -> None:
    model = nn.Sequential(nn.Linear(512, 512, bias=False))  # 1 MiB
    # Weights, two moments, a gradient; the rest are a few kilobytes of activations.
    plain = counted(model, SimpleNamespace())
    assert plain == pytest.approx(4 * MIB, abs=32_000)
    anchor = torch.zeros(512, 512)
    holding = SimpleNamespace(
        model=model, weights=list(model.parameters()), anchor=anchor, view=anchor[:3],
        teacher=copy.deepcopy(model), rows=np.zeros((512, 512), np.float32),
    )  # fmt: skip
    assert counted(model, holding) - plain == 3 * MIB  # anchor, teacher and rows


def test_it_is_the_peak_of_a_step() -> None:
    class Wide(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            torch.ones(8 * MIB, dtype=torch.uint8)  # gone at once
            return super().forward(inputs)

    narrow = counted(nn.Linear(512, 512, bias=False), SimpleNamespace())
    wide = counted(Wide(512, 512, bias=False), SimpleNamespace())
    # The weights and moments are there at that moment, the gradient is not yet.
    assert wide - narrow == pytest.approx(7 * MIB, abs=32_000)


def test_methods_hold_what_they_say(folder: Path, vanilla: Cell) -> None:
    def extra(method: Method) -> float:
        """Bytes of the second stage beyond vanilla's, in copies of the shared weights."""
        cell, again = Cell(folder, method).run(), Cell(folder, type(method)()).run()
        found, second, plain = (each.traces[1].memory_bytes for each in (cell, again, vanilla))
        assert found == second
        return (found - plain) / (4 * sum(value.numel() for value in cell.pretrained.values()))

    assert extra(RecAdam()) == pytest.approx(1.0, abs=0.01)  # the anchor
    assert extra(EWC()) > 2.0  # anchor and Fisher, and what its penalty takes for a moment
    assert extra(Frozen()) < -2.0  # no moments and no gradients
