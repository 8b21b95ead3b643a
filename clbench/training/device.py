"""Which device trains, in which precision, and what makes it repeatable and fast."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from clbench.errors import SettingsError


def resolve_device(name: str = "auto") -> torch.device:
    """The device of that name; ``auto`` takes CUDA, then MPS, then the CPU.

    Raises
    ------
    SettingsError
        If the name is no device or the device is not there.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as fault:
        raise SettingsError(
            f"--device {name!r} is no device. Use auto, cpu, cuda, cuda:N or mps."
        ) from fault
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type, False):
        raise SettingsError(
            f"--device {name}: this machine has no such device that torch "
            f"{torch.__version__} can use. Use auto or cpu."
        )
    return device


@dataclass(frozen=True)
class Precision:
    """Numbers that the forward pass computes in; weights and optimizer stay in float32.

    Attributes
    ----------
    name
        ``float32`` or ``bf16``.
    device_type
        ``cpu``, ``cuda`` or ``mps``.
    """

    name: str
    device_type: str

    def autocast(self) -> AbstractContextManager[object]:
        """Context of the forward pass."""
        if self.name == "float32":
            return nullcontext()
        return torch.autocast(self.device_type, torch.bfloat16)


def resolve_precision(name: str, device: torch.device) -> Precision:
    """``auto`` is bf16 where the hardware multiplies it faster than float32.

    That is CUDA from compute capability 8.0 on and x86 processors with AVX-512-BF16 or
    AMX; float32 elsewhere. An explicit name is taken at its word.
    """
    if name == "auto":
        name = "bf16" if _fast_bf16(device) else "float32"
    return Precision(name, device.type)


def make_repeatable(device: torch.device) -> None:
    """Choose deterministic kernels on CUDA; the CPU's already are for a given thread count."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks instead of returning each to the kernel.

    By default every tensor above 128 KiB to 32 MiB is a fresh mapping whose pages fault in
    anew at each step; a training step allocates the same sizes again and again. Returns
    whether the allocator took the advice; does nothing off glibc.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    large = 32 * 1024 * 1024  # the largest threshold that glibc accepts for mappings
    kept = libc.mallopt(mmap_threshold, large)
    return bool(libc.mallopt(trim_threshold, 1 << 30) and kept)


class PeakMemory:
    """Largest memory since construction, in megabytes (1e6 bytes).

    On CUDA what the allocator handed out; otherwise the resident memory of this process,
    where Linux can start the count anew. Elsewhere the count is over the process's life.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _reset_resident_peak()

    def megabytes(self) -> float:
        """The peak so far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / 1e6
        return _resident_peak() / 1e6


def _fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    if device.type != "cpu":
        return False
    flags = _processor_flags()
    return "avx512_bf16" in flags or "amx_bf16" in flags


@cache
def _processor_flags() -> frozenset[str]:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return frozenset()
    for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _reset_resident_peak() -> None:
    control = Path("/proc/self/clear_refs")
    if os.access(control, os.W_OK):
        control.write_text("5", encoding="ascii")  # resets VmHWM only


def _resident_peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
