"""Checks of what the hooks of a method return, in the training loop and in a Trainer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from clbench.core.errors import PluginError, count


def checked_groups(value: Any, model: nn.Module) -> list[dict[str, Any]]:
    """Return groups with at least one weight between them, all of them of the model."""
    groups = value if isinstance(value, Sequence) else ()
    lists = [isinstance(group, dict) and group.get("params") for group in groups]
    if not lists or not all(isinstance(item, Sequence) for item in lists):
        raise PluginError(
            "parameter_groups must return a list with at least one dictionary; each group needs a "
            'list of weights as "params".'
        )
    _check_groups(groups, model, "parameter_groups")
    return list(groups)


def checked_optimizer(value: object, model: nn.Module) -> Optimizer:
    """Return an optimizer of weights of the model."""
    if not isinstance(value, Optimizer):
        raise PluginError(f"optimizer must return a torch.optim.Optimizer, not {value!r:.60}.")
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


def checked_loss(value: object) -> Tensor:
    """Return a scalar that requires a gradient."""
    scalar = _scalar(value, "loss")
    if not scalar.requires_grad:
        raise PluginError("loss must return a tensor that requires a gradient, or nothing trains.")
    return scalar


def checked_penalty(value: object) -> Tensor | None:
    """Return a scalar or None."""
    return None if value is None else _scalar(value, "penalty")


def _scalar(value: object, hook: str) -> Tensor:
    if isinstance(value, Tensor) and value.dim() == 0:
        return value
    what = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"
    raise PluginError(f"{hook} must return a tensor of one number, not {what}.")
