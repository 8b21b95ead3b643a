"""Files of tensors with a checksum: what was damaged on the disk is never taken for whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


class DamagedError(Exception):
    """A file is missing, cannot be read, or does not hold what was written."""


def save(tensors: Mapping[str, Tensor], path: Path, facts: Any = None) -> None:
    """Write tensors and facts about them to a safetensors file.

    Parameters
    ----------
    tensors
        By name, on any device; tied ones are stored once each.
    path
        The file; to write it whole or not at all, see `clbench.cache.atomic_write`.
    facts
        Plain JSON values.

    Raises
    ------
    OSError, SafetensorError
        If it cannot be written.
    """
    # Copies where storage is shared: safetensors refuses it.
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    seen: set[int] = set()
    for name, value in whole.items():
        place = value.untyped_storage().data_ptr()
        if place in seen:
            whole[name] = value.clone()
        seen.add(place)
    text = json.dumps(facts)
    save_file(whole, path, metadata={"facts": text, "checksum": _checksum(whole, text)})


def load(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors, on the CPU, and the facts that `save` wrote.

    Raises
    ------
    DamagedError
        If there is no such file or a bit of it changed.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["facts"]
        if metadata["checksum"] == _checksum(tensors, text):
            return tensors, json.loads(text)
    except (OSError, SafetensorError, ValueError, KeyError) as fault:
        raise DamagedError(f"{path} cannot be read: {fault}") from fault
    raise DamagedError(f"{path} does not hold what was written")


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\0{name} {value.dtype} {list(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
