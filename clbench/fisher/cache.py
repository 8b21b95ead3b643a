"""Computed Fisher information and fitted heads on disk, by what they were computed from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clbench.cache import cache_dir, keep

VERSION = 3
"""Raised when the numbers that this package computes change."""

Facts = dict[str, Any]
"""What is to be told of a computation, as plain JSON values."""


def cached(
    key: Mapping[str, Any],
    compute: Callable[[], tuple[dict[str, Tensor], Facts]],
    *,
    kind: str = "fisher",
) -> tuple[dict[str, Tensor], Facts]:
    """What `compute` returns, from disk if it was computed for the same key before.

    Parameters
    ----------
    key
        Everything that decides the numbers, as plain JSON values.
    compute
        Returns tensors by name and facts about them.
    kind
        Folder of the cache.
    """
    text = json.dumps([VERSION, key], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    path = cache_dir(kind) / f"{digest}.safetensors"
    found = _read(path)
    if found is not None:
        return found
    tensors, facts = compute()
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = {"facts": json.dumps(facts)}
    keep(path, lambda part: save_file(tensors, part, metadata=metadata))
    return tensors, facts


def _read(path: Path) -> tuple[dict[str, Tensor], Facts] | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None  # damaged: it is computed again and written anew
