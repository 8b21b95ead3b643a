"""What a method holds in its attributes: its size, and whether rows are among it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from clbench.training.stage import Context

_NOT_ITS_OWN = (nn.Module, nn.Parameter, Optimizer, Context)
"""Left out: they belong to the cell, and are freed with it."""


def arrays(owner: object) -> Iterator[Tensor | np.ndarray[Any, Any] | list[int]]:
    """Tensors, arrays and lists of whole numbers in an object's attributes, each once."""
    seen: set[int] = set()
    left: list[Any] = list(vars(owner).values())
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, _NOT_ITS_OWN):
            continue
        seen.add(id(value))
        numbers = isinstance(value, list) and value and all(type(v) is int for v in value)
        if numbers or isinstance(value, Tensor | np.ndarray):
            yield value
        elif isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            left += value
        elif dataclasses.is_dataclass(value) or type(value).__module__ != "builtins":
            left += getattr(value, "__dict__", {}).values()


def bytes_held(owner: object) -> int:
    """Bytes of the tensors and arrays in an object's attributes; views count as their base."""
    found: dict[int, int] = {}
    for value in arrays(owner):
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, np.ndarray):
            found[id(value)] = value.nbytes
    return sum(found.values())
