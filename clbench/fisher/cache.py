"""Computed Fisher information and fitted heads on disk, by what they were computed from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor

from clbench import sealed
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
    with suppress(sealed.DamagedError):  # missing, or damaged: computed and written anew
        found: tuple[dict[str, Tensor], Facts] = sealed.load(path)
        return found
    tensors, facts = compute()
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    keep(path, partial(sealed.save, tensors, facts=facts))
    return tensors, facts
