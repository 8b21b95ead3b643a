"""States of a caller's process in which scores must be those of a fresh one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook


@contextmanager
def setting(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
    """Set something, and put it back."""
    before = read()
    write(value)
    try:
        assert read() == value
        yield
        assert read() == value  # clbench has put it back
    finally:
        write(before)


@contextmanager
def hooked() -> Iterator[None]:
    """Halve what every layer norm returns."""
    norms: list[int] = []

    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        norms.append(1)
        return output / 2 if isinstance(module, torch.nn.LayerNorm) else None

    handle = register_module_forward_hook(hook)
    try:
        yield
        count = len(norms)
        torch.nn.Identity()(torch.ones(1))
        assert len(norms) == count + 1 == 1  # it is back, and clbench has not called it
    finally:
        handle.remove()


STATES: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "default type": lambda: setting(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "default device": lambda: setting(
        torch.get_default_device, torch.set_default_device, torch.device("meta")
    ),
    "device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "gradient mode": torch.no_grad,
    "inference mode": torch.inference_mode,
    "precision of products": lambda: setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "deterministic algorithms": lambda: setting(
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 2
    ),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "hook": hooked,
}


@contextmanager
def states(*names: str) -> Iterator[None]:
    """Enter several states at once, in an order that torch allows."""
    with ExitStack() as stack:
        for name in (name for name in STATES if name in names):
            stack.enter_context(STATES[name]())
        yield
