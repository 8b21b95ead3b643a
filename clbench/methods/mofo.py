"""MoFO: Adam that moves only the weights with the largest momentum (Chen et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.optim import AdamW

from clbench.methods.base import Method

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from clbench.training.stage import Stage


class MoFO(Method):
    """Move in each step only the weights with the largest first moment of Adam.

    Adam's moments are those of all weights, but of each tensor only the share `fraction` with the
    largest ``|m|`` moves (Chen et al. 2024, arXiv 2407.20999, Algorithm 1); the others stay as they
    are, weight decay included, so the model stays nearer to where it was. A new head, which has
    nothing to forget, moves whole; a head that an earlier task trained is filtered like the
    backbone. That includes the rows of new classes in a head that grows. Biases and norms are
    filtered as printed; the authors' code lets them move.

    Attributes
    ----------
    fraction
        α: share of the weights of a tensor that move in a step, at least one weight; 1 is vanilla.
    """

    name: ClassVar[str] = "mofo"
    needs_outputs: ClassVar[bool] = True  # a share of a whole tensor moves
    fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.15

    def acts_in(self, index: int) -> bool:
        """Return False if all weights move."""
        return self.fraction < 1.0

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the weights to filter, and those of a new head."""
        names = {id(weight): name for name, weight in stage.model.named_parameters()}
        shared, trained = set(stage.shared_names()), stage.trainable()
        filtered = [weight for weight in trained if names[id(weight)] in shared]
        new = [weight for weight in trained if names[id(weight)] not in shared]
        groups = [(filtered, self.fraction), (new, 1.0)]
        return [
            {"params": weights, "lr": stage.protocol.lr, "fraction": fraction}
            for weights, fraction in groups
            if weights
        ]

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the filtered Adam with the protocol's settings."""
        return stage.adam(groups, FilteredAdam)


class FilteredAdam(AdamW):
    """Adam, or AdamW with weight decay, that moves a part of each tensor.

    A group's option ``fraction`` (default 1) is the share of each of its tensors that moves.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and put the weights with smaller momentum back; see `AdamW.step`."""
        before = [
            (weight, weight.clone(), group["fraction"])
            for group in self.param_groups
            for weight in group["params"]
            if weight.grad is not None and group.get("fraction", 1.0) < 1.0
        ]
        loss = super().step(closure)
        for weight, value, fraction in before:
            moves = largest(self.state[weight]["exp_avg"], fraction)
            weight.copy_(torch.where(moves, weight, value))
        return loss


def largest(moment: Tensor, fraction: float) -> Tensor:
    """Return a mask of the `fraction` of elements with the largest size, at least one.

    Elements as large as the smallest of these are in the mask too.
    """
    sizes = moment.abs()
    return sizes >= nth_largest(sizes.flatten(), max(1, round(fraction * sizes.numel())))


def nth_largest(values: Tensor, n: int) -> Tensor:
    """Return the n-th largest of `values`, of shape (m,), as a scalar; n counts from 1."""
    rank = len(values) - n
    if values.device.type == "cpu":
        # Eight times as fast as torch.
        return torch.as_tensor(np.partition(values.numpy(), rank)[rank])
    return values.kthvalue(rank + 1).values
