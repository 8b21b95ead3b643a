"""How much memory training takes, counted tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clbench.methods.base import Method
from clbench.training.live_bytes import LiveBytes
from clbench.training.reachable import everything


class StepMemory:
    """Largest number of bytes of the tensors on a device in the steps that were counted.

    Those are the weights, what optimizer and method hold (moments, anchors, Fisher, kept rows),
    and at its peak what a step makes besides: activations, gradients and temporaries. The
    count is exact and the same on every run, unlike the memory of a process, in which freed blocks
    and what earlier cells left behind are counted, too. What a library's kernels take for
    themselves is not in it.

    Attributes
    ----------
    peak
        In bytes; 0 before a step was counted.
    """

    def __init__(self, device: torch.device) -> None:
        self.peak = 0
        self._device = device

    @contextmanager
    def counted(self, model: nn.Module, method: Method, optimizer: Optimizer) -> Iterator[None]:
        """Count what happens inside: one step."""
        found = list(everything(model, optimizer, *vars(method).values()))
        tensors = [value for value in found if isinstance(value, Tensor)]
        here = [tensor for tensor in tensors if tensor.device.type == self._device.type]
        held = sum(
            {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in here}.values()
        )
        if self._device.type == "cpu":
            held += sum(value.nbytes for value in found if isinstance(value, np.ndarray))
        with LiveBytes(besides=tensors) as live:
            yield
        self.peak = max(self.peak, held + live.peak)
