"""Checks of the values that hooks return, so that an error names the hook, not an engine line.

Each function takes the return value of the hook of the same name and returns it typed, or raises
a `PluginError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from clbench.core.errors import PluginError, count
from clbench.training.batches import TaskData
from clbench.training.protocol import Phase


def training_data(value: object) -> list[TaskData]:
    """Return a list with at least one `TaskData`."""
    return _list_of(TaskData, value, "training_data")


def phases(value: object) -> list[Phase]:
    """Return at least one phase, none of negative length."""
    items: list[Phase] = _list_of(Phase, value, "phases")
    for phase in items:
        if phase.steps is not None and phase.steps < 0:
            raise PluginError(f"phases: phase {phase.name!r} has {phase.steps} steps, below 0.")
    if all(phase.steps == 0 for phase in items):
        raise PluginError("phases: none has a step. Give one of them more, or steps = None.")
    return items


def parameter_groups(value: object, model: nn.Module) -> list[dict[str, Any]]:
    """Return groups with at least one weight between them, all of them of the model."""
    groups = _list_of(dict, value, "parameter_groups")
    if not all(isinstance(group.get("params"), Sequence) for group in groups):
        raise PluginError('parameter_groups: each group needs a list of weights as "params".')
    _check_groups(groups, model, "parameter_groups")
    return groups


def optimizer(value: object, model: nn.Module) -> Optimizer:
    """Return an optimizer of weights of the model."""
    if not isinstance(value, Optimizer):
        raise PluginError(f"optimizer must return a torch.optim.Optimizer, not {_a(value)}.")
    _check_groups(value.param_groups, model, "optimizer")
    return value


def _check_groups(groups: Sequence[Mapping[str, Any]], model: nn.Module, hook: str) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    weights = [weight for group in groups for weight in group["params"]]
    if not weights:
        raise PluginError(f"{hook} returned no weights to train.")
    if foreign := [weight for weight in weights if id(weight) not in own]:
        raise PluginError(
            f"{hook} returned {count(len(foreign), 'tensor')} that the model does not have. Return "
            "parameters of stage.model; add new ones to it in setup."
        )
    for rate in (group["lr"] for group in groups if "lr" in group):
        if not math.isfinite(rate) or rate < 0:
            raise PluginError(f"{hook}: a learning rate must be a number from 0 on, got {rate}.")


def schedule(value: Any) -> Any:
    """Return an object with a ``step`` method, or None."""
    if value is not None and not callable(getattr(value, "step", None)):
        raise PluginError(f"schedule must return a scheduler or None, not {_a(value)}.")
    return value


def loss(value: object) -> Tensor:
    """Return a scalar that requires a gradient."""
    scalar = _scalar(value, "loss")
    if not scalar.requires_grad:
        raise PluginError("loss must return a tensor that requires a gradient, or nothing trains.")
    return scalar


def penalty(value: object) -> Tensor | None:
    """Return a scalar or None."""
    return None if value is None else _scalar(value, "penalty")


def scoring(value: Any) -> AbstractContextManager[object]:
    """Return a context manager."""
    if not isinstance(value, AbstractContextManager):
        raise PluginError(f"scoring must return a context manager, not {_a(value)}.")
    return value


def _scalar(value: object, hook: str) -> Tensor:
    if isinstance(value, Tensor) and value.dim() == 0:
        return value
    what = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else _a(value)
    raise PluginError(f"{hook} must return a tensor of one number, not {what}.")


def _list_of(kind: type, value: object, hook: str) -> list[Any]:
    word = "dictionary" if kind is dict else kind.__name__
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        what = "an empty one" if isinstance(value, Sequence) and not value else _a(value)
        raise PluginError(f"{hook} must return a list with at least one {word}, not {what}.")
    for item in value:
        if not isinstance(item, kind):
            raise PluginError(f"{hook} must return a list of {word}, but one is {_a(item)}.")
    return list(value)


def _a(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"
