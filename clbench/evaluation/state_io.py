"""Nested values with tensors as flat tensors and JSON, so that no pickle is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class UnstorableStateError(TypeError):
    """A value is of a type that cannot be stored."""


def pack(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a nested value into JSON and tensors.

    Parameters
    ----------
    value
        Dictionaries, lists, tuples, tensors, arrays, numbers, texts, None, nested at will.

    Returns
    -------
    skeleton
        JSON with a reference in the place of each tensor.
    tensors
        By reference; detached, on the CPU.

    Raises
    ------
    UnstorableStateError
        For any other type, with the path to it.
    """
    tensors: dict[str, Tensor] = {}
    return _pack(value, tensors, "state"), tensors


def unpack(skeleton: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """Put together again what `pack` took apart; tensors go to the device they came from.

    A tensor that was on an accelerator is moved to `device`; others stay on the CPU.
    """
    kind, content = skeleton
    if kind == "value":
        return content
    if kind == "tensor":
        name, was_on_device = content
        return tensors[name].to(device) if was_on_device else tensors[name]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "dict":
        return {key: unpack(inner, tensors, device) for key, inner in content}
    items = [unpack(inner, tensors, device) for inner in content]
    return tuple(items) if kind == "tuple" else items


def _pack(value: Any, tensors: dict[str, Tensor], path: str) -> list[Any]:
    if value is None or isinstance(value, bool | int | float | str):
        return ["value", value]
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return ["tensor", [name, value.device.type != "cpu"]]
    if isinstance(value, np.generic):
        return ["value", value.item()]
    if isinstance(value, np.ndarray):
        name = f"t{len(tensors)}"
        try:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(value)).clone()
        except TypeError as fault:
            raise UnstorableStateError(f"{path} is an array of {value.dtype}") from fault
        return ["array", name]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int):
                raise UnstorableStateError(f"{path} has a key of type {type(key).__name__}")
        return [
            "dict",
            [[key, _pack(inner, tensors, f"{path}.{key}")] for key, inner in value.items()],
        ]
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [_pack(v, tensors, f"{path}[{i}]") for i, v in enumerate(value)]]
    raise UnstorableStateError(f"{path} is a {type(value).__name__}")
