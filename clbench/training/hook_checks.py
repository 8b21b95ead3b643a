"""What hooks return, checked, so that a mistake names the hook and not a line of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from clbench.errors import PluginError
from clbench.methods.base import Phase
from clbench.training.batches import TaskData


def portions(value: object) -> list[TaskData]:
    """What `training_data` returned.

    Raises
    ------
    PluginError
        As all functions here, if it is not what the hook is to return.
    """
    return _filled(value, TaskData, "training_data")


def phases(value: object) -> list[Phase]:
    """What `phases` returned: at least one, none of negative length."""
    found = _filled(value, Phase, "phases")
    for phase in found:
        if phase.steps is not None and phase.steps < 0:
            raise PluginError(f"phases: phase {phase.name!r} has {phase.steps} steps.")
    return found


def groups(value: object) -> list[dict[str, Any]]:
    """What `parameter_groups` returned: groups with weights, each weight once."""
    found = _filled(value, dict, "parameter_groups")
    seen: set[int] = set()
    for group in found:
        parameters = group.get("params")
        if isinstance(parameters, Tensor) or not isinstance(parameters, Sequence):
            raise PluginError('parameter_groups: each group needs a list of weights as "params".')
        for parameter in parameters:
            if not isinstance(parameter, Tensor):
                raise PluginError(
                    f"parameter_groups: a group holds {_a(parameter)} among its weights."
                )
            if id(parameter) in seen:
                raise PluginError("parameter_groups: a weight is in two places.")
            seen.add(id(parameter))
    if not seen:
        raise PluginError("parameter_groups gave no weights to train.")
    return found


def optimizer(value: object) -> Optimizer:
    """What `optimizer` returned."""
    if not isinstance(value, Optimizer):
        raise PluginError(f"optimizer must return a torch.optim.Optimizer, not {_a(value)}.")
    return value


def schedule(value: Any) -> Any:
    """What `schedule` returned: something with a ``step`` method, or None."""
    if value is not None and not callable(getattr(value, "step", None)):
        raise PluginError(f"schedule must return a scheduler or None, not {_a(value)}.")
    return value


def loss(value: object) -> Tensor:
    """What `loss` returned: a scalar with a gradient."""
    scalar = _scalar(value, "loss")
    if not scalar.requires_grad:
        raise PluginError("loss returned a tensor without a gradient: nothing would be learned.")
    return scalar


def penalty(value: object) -> Tensor | None:
    """What `penalty` returned: a scalar, or None."""
    return None if value is None else _scalar(value, "penalty")


def context(value: Any) -> AbstractContextManager[object]:
    """What `scoring` returned: a context manager."""
    if not isinstance(value, AbstractContextManager):
        raise PluginError(f"scoring must return a context manager, not {_a(value)}.")
    return value


def _scalar(value: object, hook: str) -> Tensor:
    if not isinstance(value, torch.Tensor):
        raise PluginError(f"{hook} must return a tensor of one number, not {_a(value)}.")
    if value.dim() != 0:
        raise PluginError(
            f"{hook} must return a tensor of one number, not of shape {tuple(value.shape)}."
        )
    return value


def _filled(value: object, kind: type, hook: str) -> list[Any]:
    word = "dictionary" if kind is dict else kind.__name__
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        shown = "an empty one" if isinstance(value, Sequence) and not value else _a(value)
        raise PluginError(f"{hook} must return a list with at least one {word}, not {shown}.")
    for item in value:
        if not isinstance(item, kind):
            raise PluginError(f"{hook} must return a list of {word}, but one is {_a(item)}.")
    return list(value)


def _a(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"
