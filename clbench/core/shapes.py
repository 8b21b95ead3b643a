"""Run code on the shapes of tensors alone, to learn what memory it takes."""

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import chain, islice
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")

SMALL, LARGE = 1 << 16, 1 << 20
"""Most floats that an operation may draw, and most integers of a tensor to compute."""
SCALAR = 1e-4
"""Stands for every float that is read from a tensor: finite, not 0, and a small difference."""
COMPUTED = {"aten::nonzero", "aten::_unique2", "aten::unique_dim", "aten::set_"}
"""Operations whose shapes depend on numbers, or which change a tensor's memory."""
META = torch.device("meta")
_running: ContextVar["_Operations | None"] = ContextVar("shapes", default=None)


def only_shapes() -> bool:
    """Whether this code runs inside `on_shapes`."""
    return _running.get() is not None


def few(items: Iterable[T]) -> Iterator[T]:
    """Return the items; inside `on_shapes` only the first one, as all need the same memory."""
    return islice(items, 1) if only_shapes() else iter(items)


@contextmanager
def on_shapes() -> Iterator[None]:
    """Run code on the CPU without computing with floats.

    Tensors of floats have their part of the address space, but as nothing is ever written to them,
    no memory. Tokens, labels, masks and random draws have their numbers, so that code goes its
    usual way. Models that are loaded meanwhile get no weights (`without_numbers`).
    """
    operations = _Operations()  # type: ignore[no-untyped-call]
    token = _running.set(operations)
    try:
        with operations:
            yield
    finally:
        _running.reset(token)


def without_numbers(make: Callable[[], T]) -> T:
    """Return what `make` makes, such as a module; inside `on_shapes` its floats have no numbers."""
    if (operations := _running.get()) is None:
        return make()
    operations.most = 0
    try:
        return make()
    finally:
        operations.most = SMALL


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes with integers, and only the shapes of what has a float in it."""

    most = SMALL

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, or return tensors of the shapes that it would return."""
        kwargs, schema = kwargs or {}, func._schema
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point():
            return SCALAR
        values = chain(
            *(v if type(v) in (list, tuple) else (v,) for v in (*args, *kwargs.values()))
        )
        tensors = [value for value in values if isinstance(value, Tensor)]
        is_shape = any(v.is_floating_point() or v.numel() > LARGE for v in tensors)
        if not tensors and args and isinstance(args[0], list | tuple):
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            is_shape = prod(args[0]) > (self.most if dtype.is_floating_point else LARGE)
        has_result = any("Tensor" in str(each.type) for each in schema.returns)
        is_inplace = schema.name.endswith("_")
        is_number = not (has_result or is_inplace)
        if not is_shape or func.is_view or is_number or schema.name in COMPUTED:
            return func(*args, **kwargs)
        if is_inplace:
            return args[0] if has_result else None
        if "out" in kwargs:
            return kwargs["out"]
        if schema.name == "aten::index":  # the size of what a mask selects is not in its shape
            masks = (i is not None and i.dtype == torch.bool for i in args[1])
            pairs = zip(args[1], masks, strict=True)
            args = (
                args[0],
                [p for i, mask in pairs for p in (i.nonzero().unbind(1) if mask else [i])],
            )
        named = tuple((name, _shape(value)) for name, value in kwargs.items())
        result = _result(func, tuple(map(_shape, args)), named)
        if isinstance(result, list | tuple):
            return type(result)(map(_unwritten, result))
        return _unwritten(result)


class _Shape(NamedTuple):
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _shape(value: Any) -> Any:
    """Return an argument of an operation, with a shape for a tensor; it can be hashed."""
    if isinstance(value, Tensor):
        return _Shape(value.shape, value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(_shape, value))
    if isinstance(value, torch.Generator):
        return None
    return META if isinstance(value, torch.device) else value


def _meta(value: Any) -> Any:
    """Return what `_shape` stands for, on torch's meta device."""
    if isinstance(value, _Shape):
        return torch.empty_strided(value.size, value.stride, dtype=value.dtype, device=META)
    return [*map(_meta, value)] if type(value) is tuple else value


@lru_cache(8192)
def _result(func: Any, args: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> Any:
    """Return the result of an operation on the meta device, which computes shapes only."""
    return func(*map(_meta, args), **{name: _meta(value) for name, value in named})


def _unwritten(value: Any) -> Any:
    """Return a tensor of the shape of one on the meta device: zeros, or true for small masks.

    Zeros are pages of their own, which take no memory until they are written to.
    """
    if not isinstance(value, Tensor):
        return value
    steps = zip(value.shape, value.stride(), strict=True)
    extent = 1 + sum((n - 1) * step for n, step in steps) if value.numel() else 0
    if value.dtype == torch.bool and extent <= SMALL:
        numbers = np.ones(extent, bool)
    else:
        numbers = _zeros(extent * value.dtype.itemsize)
    return torch.from_numpy(numbers).view(value.dtype).as_strided(value.shape, value.stride())


def _zeros(size: int) -> np.ndarray:
    """Return zero bytes; many of them from the system, as `numpy.zeros` may use memory again."""
    if size <= SMALL:
        return np.zeros(size, np.uint8)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    return np.frombuffer(mmap.mmap(-1, size, **private), np.uint8)
