"""Devices and precision, and settings that make training repeatable and fast."""

import ctypes
import json
import math
import os
import platform
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from clbench.core.errors import SettingsError, named
from clbench.core.files import cache_dir, digest, read_file, write_if_possible
from clbench.models.locate import model_identity

LEAST_GAIN = 1.3
"""How many times as fast as float32 bf16 must be, as it also rounds and converts."""
MEASURED_SECONDS = 0.05
FEWEST_PRODUCTS = 4
RETURN_SECONDS = 60.0
"""How often freed memory is returned. Its pages are cleared anew then: for a decoder of 135 million
parameters about half a second on a CPU core."""
_returned = time.monotonic()
SHAPES = ((256, 768), (768, 768))
"""256 tokens and a weight of BERT-base: a product takes about a millisecond, so that some of many
are not disturbed by other programs."""


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
    """Number format of the forward pass with float32 weights; bf16 weights compute in their own."""

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
    """Whether the device multiplies matrices at least `LEAST_GAIN` times faster in bf16."""
    return bf16_gain(device) >= LEAST_GAIN


def precision_note(name: str, device: torch.device) -> str:
    """Return a sentence on what ``auto`` chose and why; empty without a choice."""
    if name != "auto":
        return ""
    if not (gain := bf16_gain(device)):
        return f"Precision: float32. auto knows no bf16 instructions on this {device.type.upper()}."
    return (
        f"Precision: {resolve_precision(name, device).name}. Matrix products in bf16 are "
        f"{gain:.2g} times as fast as in float32 on this {device.type.upper()}; auto takes bf16 "
        f"from {LEAST_GAIN} on."
    )


@cache
def bf16_gain(device: torch.device) -> float:
    """Return how many times as fast as in float32 the device multiplies matrices in bf16.

    The fastest of many short products counts. It is measured in a twentieth of a second, once for
    each kind of processor and version of torch, and kept in the user's cache: instructions for bf16
    do not make it fast, as on processors with AVX-512-BF16 but without AMX. 0 where the hardware
    has no such instructions.
    """
    if device.type == "cuda":
        processor = torch.cuda.get_device_name(device)
        has_bf16 = torch.cuda.get_device_capability(device)[0] >= 8
    else:
        processor = _processor()
        has_bf16 = device.type == "cpu" and bool({"avx512_bf16", "amx_bf16"} & {*processor.split()})
    if not has_bf16:
        return 0.0
    path = cache_dir("bf16") / f"{digest(f'{processor} {torch.__version__}')}.json"
    with suppress(OSError, ValueError):
        return float(json.loads(read_file(path)))
    formats = torch.float32, torch.bfloat16
    pairs = [[torch.ones(s, dtype=d, device=device) for s in SHAPES] for d in formats]
    seconds = [math.inf, math.inf]
    end, count = time.perf_counter() + MEASURED_SECONDS, 0
    while time.perf_counter() < end or count < FEWEST_PRODUCTS:
        for i, pair in enumerate(pairs):
            start = time.perf_counter()
            torch.nn.functional.linear(*pair)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if count:  # the first one also starts threads and chooses kernels
                seconds[i] = min(seconds[i], time.perf_counter() - start)
        count += 1
    gain = seconds[0] / seconds[1]
    write_if_possible(path, json.dumps(gain))
    return gain


def _processor() -> str:
    """Return model and flags of the processor; empty where the system does not tell."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    first = text.partition("\n\n")[0].splitlines()
    kept = ("vendor_id", "cpu family", "model", "stepping", "flags")
    return " ".join(line.partition(":")[2] for line in first if line.startswith(kept))


def make_repeatable(device: torch.device) -> None:
    """Choose deterministic kernels on CUDA; on the CPU all are, for a fixed number of threads."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


@cache
def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks; return whether it does.

    By default every large tensor is a new mapping, whose pages fault in again at each step. A
    threshold would not do, as glibc takes none above 32 MB, less than the gradient of a decoder's
    embeddings.
    """
    if not _has_glibc():
        return False
    trim_threshold, most_mappings = -1, -4
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(trim_threshold, -1) and libc.mallopt(most_mappings, 0))


def return_freed_memory() -> None:
    """Give freed blocks that glibc keeps back to the system."""
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def return_old_memory() -> None:
    """Call `return_freed_memory` if `RETURN_SECONDS` have passed since this last did so.

    Blocks of ever new sizes, from batches of other lengths, leave gaps between them.
    """
    global _returned
    if (now := time.monotonic()) - _returned >= RETURN_SECONDS:
        _returned = now
        return_freed_memory()


def _has_glibc() -> bool:
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


def circumstances(
    name: str, revision: str | None, device: torch.device, precision: Precision
) -> dict[str, Any]:
    """Return on what a computation with a model depends besides its recipe."""
    import transformers

    return {
        "model": model_identity(name, revision),
        "numerics": [device.type, precision.name, torch.get_num_threads()],
        "versions": [torch.__version__, transformers.__version__],
    }
