"""What a result was computed with: versions and machine, without names of people or hosts."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "datasets", "numpy", "scikit-learn", "tokenizers")


@cache
def versions() -> dict[str, str]:
    """Versions of what decides numbers."""
    import clbench

    found = {"clbench": clbench.__version__, "python": platform.python_version()}
    return found | {name: version(name) for name in PACKAGES}


def host(device: torch.device) -> dict[str, Any]:
    """The machine and the device that trains."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": device_name(device),
    }


def numerics(device: torch.device, precision: str) -> dict[str, Any]:
    """What decides the digits of a stage besides its recipe."""
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "precision": precision,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def device_name(device: torch.device) -> str:
    """Model of the accelerator or processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor() if device.type == "cpu" else f"{device.type} on {_processor()}"


@cache
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
