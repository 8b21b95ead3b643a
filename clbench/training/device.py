"""Devices and precision, and settings that make training repeatable and fast."""

import ctypes
import os
import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from clbench.core.errors import SettingsError, named


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device of that name; ``auto`` prefers CUDA, then MPS, then the CPU.

    Raises a SettingsError if the name is not a device or this machine does not have the device.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(
            f"{named('device')} {name!r} is not a device. Use auto, cpu, cuda, cuda:N or mps."
        ) from error
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(device.type, False):
        raise SettingsError(
            f"{named('device')} {name}: torch {torch.__version__} finds no such device on this "
            "machine. Use auto or cpu."
        )
    return device


@dataclass(frozen=True)
class Precision:
    """Number format of the forward pass; weights and optimizer state stay in float32."""

    name: str  # float32, bf16, or in a Trainer fp16
    device_type: str  # cpu, cuda or mps

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        if self.name == "float32":
            return nullcontext()
        dtype = torch.float16 if self.name == "fp16" else torch.bfloat16
        return torch.autocast(self.device_type, dtype)


def resolve_precision(name: str, device: torch.device) -> Precision:
    """Return the precision of that name; ``auto`` is bf16 where `fast_bf16` says so."""
    if name == "auto":
        name = "bf16" if fast_bf16(device) else "float32"
    return Precision(name, device.type)


def fast_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bf16 faster than float32.

    True for CUDA from compute capability 8.0 on, and for x86 processors with AVX-512-BF16 or AMX.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    return device.type == "cpu" and not _processor_flags().isdisjoint({"avx512_bf16", "amx_bf16"})


@cache
def _processor_flags() -> frozenset[str]:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    lines = (line for line in text.splitlines() if line.startswith("flags"))
    return frozenset(next(lines, "").partition(":")[2].split())


def make_repeatable(device: torch.device) -> None:
    """Choose deterministic kernels on CUDA; on the CPU all are, for a fixed number of threads."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


@cache
def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks; return whether it does.

    By default every large tensor is a new mapping, whose pages fault in again at each step.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    largest = 32 * 1024 * 1024  # the largest threshold that glibc accepts for mappings
    mapped = libc.mallopt(mmap_threshold, largest)
    return bool(libc.mallopt(trim_threshold, 1 << 30) and mapped)
