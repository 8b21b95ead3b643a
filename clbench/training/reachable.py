"""What objects hold: tensors, arrays and lists of numbers in their attributes."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from clbench.methods.base import Method
from clbench.training.stage import Context

Found = Tensor | np.ndarray[Any, Any] | list[int]

_NOT_ITS_OWN = (nn.Module, nn.Parameter, Optimizer, Context)
"""Left out of what is a method's own: they belong to the cell, and are freed with it."""


def arrays(owner: object) -> Iterator[Found]:
    """Tensors, arrays and lists of whole numbers in an object's attributes, each once."""
    yield from _within(vars(owner).values())


def everything(*owners: object) -> Iterator[Found]:
    """The same of several objects together; of modules and optimizers, what they train and keep."""
    yield from _within([*owners], skip=(Context,))


def reachable(method: Method) -> Iterator[Found]:
    """The same in the method's attributes, its classes, their modules, and closures of all."""
    kinds = [kind for kind in type(method).__mro__ if issubclass(kind, Method)]
    roots = [*vars(method).values()]
    for kind in kinds[: kinds.index(Method)]:
        roots += vars(kind).values()
        roots += vars(sys.modules.get(kind.__module__, object)).values()
    yield from _within(roots)


def _within(roots: Iterable[Any], skip: tuple[type, ...] = _NOT_ITS_OWN) -> Iterator[Found]:
    seen: set[int] = set()
    left: list[Any] = list(roots)
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, skip):
            continue
        seen.add(id(value))
        numbers = isinstance(value, list) and value and all(type(v) is int for v in value)
        if numbers or isinstance(value, Tensor | np.ndarray):
            yield value
        elif isinstance(value, nn.Module):
            left += [*value.parameters(), *value.buffers()]
        elif isinstance(value, Optimizer):
            left.append(value.state)
        elif isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple | set | frozenset | deque):
            left += value
        elif isinstance(value, FunctionType):
            left += [*(value.__closure__ or ()), *(value.__defaults__ or ())]
        elif isinstance(value, MethodType):
            left += [value.__func__, value.__self__]
        elif isinstance(value, CellType):
            left += [value.cell_contents] if _filled(value) else []
        elif isinstance(value, type | ModuleType):
            continue
        elif dataclasses.is_dataclass(value) or type(value).__module__ != "builtins":
            left += getattr(value, "__dict__", {}).values()


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


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
