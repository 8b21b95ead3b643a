"""Memory of the tensors that objects hold, of a training step, and of the whole process."""

import dataclasses
import os
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from clbench.training.context import Context
from clbench.training.device import return_freed_memory
from clbench.training.method import Method

Array = Tensor | np.ndarray[Any, Any] | list[int]

CELL_OBJECTS = (nn.Module, nn.Parameter, torch.optim.Optimizer, Context)
"""Objects of the cell that a method refers to but does not own."""


def walk(roots: Iterable[Any], skip: tuple[type, ...] = CELL_OBJECTS) -> Iterator[Array]:
    """Yield once each tensor, array and list of integers that can be reached from `roots`.

    Follows containers, attributes, closures and bound methods, but no object of a type in `skip`.
    From modules and optimizers it yields parameters, buffers and optimizer state.
    """
    seen: set[int] = set()
    pending: list[Any] = list(roots)
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, skip):
            continue
        seen.add(id(value))
        integers = isinstance(value, list) and value and all(type(v) is int for v in value)
        if integers or isinstance(value, Tensor | np.ndarray):
            yield value
        elif isinstance(value, nn.Module):
            pending += [*value.parameters(), *value.buffers()]
        elif isinstance(value, torch.optim.Optimizer):
            pending.append(value.state)
        elif isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple | set | frozenset | deque):
            pending += value
        elif isinstance(value, FunctionType):
            pending += [*(value.__closure__ or ()), *(value.__defaults__ or ())]
        elif isinstance(value, MethodType):
            pending += [value.__func__, value.__self__]
        elif isinstance(value, CellType):
            with suppress(ValueError):  # not assigned yet
                pending.append(value.cell_contents)
        elif not isinstance(value, type | ModuleType) and (
            dataclasses.is_dataclass(value) or type(value).__module__ != "builtins"
        ):
            pending += getattr(value, "__dict__", {}).values()


def bytes_of(values: Iterable[Array]) -> int:
    """Return the bytes of tensors and arrays; tensors that share a storage count once."""
    sizes: dict[int, int] = {}
    for value in values:
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
        elif isinstance(value, np.ndarray):
            sizes[id(value)] = value.nbytes
    return sum(sizes.values())


def bytes_held(owner: object) -> int:
    """Return the bytes of the tensors and arrays in an object's attributes."""
    return bytes_of(walk(vars(owner).values()))


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors created inside the context, exactly and on any device.

    `current` is their number now, `peak` the largest so far. The storages of the tensors
    `existing` are not counted.
    """

    def __init__(self, existing: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = 0
        self.peak = 0
        self._sizes: dict[int, int] = {t.untyped_storage()._cdata: 0 for t in existing}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count the tensors that it returns."""
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self._count(value)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.current += storage.nbytes()
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.current -= self._sizes.pop(key)


class StepMemory:
    """Peak bytes of the tensors on a device over the training steps that are measured.

    These are the weights, the tensors of optimizer and method (moments, anchors, Fisher
    information, stored rows), and the activations, gradients and temporaries of the step. Unlike
    the memory of a process, the count is exact and repeatable. It leaves out workspaces inside a
    library's kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self.peak = 0
        self._device = device

    @contextmanager
    def measure(
        self, model: nn.Module, method: Method, optimizer: torch.optim.Optimizer
    ) -> Iterator[None]:
        """Measure one step, which runs inside the context."""
        arrays = list(walk([model, optimizer, *vars(method).values()], skip=(Context,)))
        tensors = [value for value in arrays if isinstance(value, Tensor)]
        kind = self._device.type
        base = bytes_of(tensor for tensor in tensors if tensor.device.type == kind)
        if kind == "cpu":
            base += bytes_of(value for value in arrays if isinstance(value, np.ndarray))
        with LiveBytes(existing=tensors) as live:
            yield
        self.peak = max(self.peak, base + live.peak)


class PeakMemory:
    """Peak memory since construction, in megabytes (1e6 bytes).

    On CUDA the memory of torch's allocator; elsewhere the resident memory of the process, since
    its start if ``/proc/self/clear_refs`` cannot be written; on Windows it is not measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        control = Path("/proc/self/clear_refs")
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif os.access(control, os.W_OK):
            return_freed_memory()  # else blocks that an earlier cell has freed would count
            control.write_text("5", encoding="ascii")  # resets VmHWM only

    def megabytes(self) -> float | None:
        """Return the peak so far, or None where the system does not tell."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / 1e6
        status = Path("/proc/self/status")
        if status.exists():
            for line in status.read_text(encoding="utf-8").splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024 / 1e6
        if sys.platform == "win32":
            return None
        import resource

        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6
