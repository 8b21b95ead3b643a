"""Computed Fisher information and fitted heads on disk, by what they were computed from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor

from clbench.cache import (
    DamagedFileError,
    cache_dir,
    load_tensors,
    save_tensors,
    write_if_possible,
)

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
    with suppress(DamagedFileError):  # missing, or damaged: computed and written anew
        found: tuple[dict[str, Tensor], Facts] = load_tensors(path)
        return found
    tensors, facts = compute()
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_if_possible(path, partial(save_tensors, tensors, facts=facts))
    return tensors, facts
