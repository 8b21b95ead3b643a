"""A-GEM: to first order, no step may raise the loss on rows of earlier tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from clbench.methods.base import should_record
from clbench.methods.replay import Rehearsal

if TYPE_CHECKING:
    from clbench.training.stage import Stage


class AGem(Rehearsal):
    """Averaged gradient episodic memory: project gradients that conflict with earlier tasks.

    With g the gradient of the batch and r that of rows drawn from the memory, g becomes
    g - (g·r / r·r) r if g·r < 0 (Chaudhry et al. 2019a, "Efficient lifelong learning
    with A-GEM", equation 11). g and r cover the weights that tasks share: backbone and
    shared heads. See `Rehearsal` for the settings of the memory.
    """

    name: ClassVar[str] = "a-gem"

    def before_stage(self, stage: Stage) -> None:
        """Reset the count of conflicts."""
        self._conflicts = torch.zeros((), device=stage.device)
        self._steps = 0

    def before_phase(self, stage: Stage) -> None:
        """Train no heads of earlier tasks, unlike other rehearsal methods."""

    def edit_gradients(self, stage: Stage) -> None:
        """Project a conflicting gradient, without waiting for the device."""
        if not self.kept:
            return
        weights = dict(stage.model.named_parameters())
        shared = [weights[n] for n in stage.shared_names() if weights[n].grad is not None]
        loss = self.memory_loss(stage, self.draw(stage, "a-gem"))
        references = torch.autograd.grad(loss, shared, allow_unused=True)
        pairs = [
            (weight.grad, reference)
            for weight, reference in zip(shared, references, strict=True)
            if weight.grad is not None and reference is not None
        ]
        dot = project([g for g, _ in pairs], [r for _, r in pairs])
        self._conflicts += dot < 0
        self._steps += 1
        if should_record(stage):
            stage.record("projected_share", self._conflicts / self._steps)


@torch.no_grad()
def project(gradients: list[Tensor], references: list[Tensor]) -> Tensor:
    """Remove from the gradients g, in place, the component that points against the references r.

    Both are lists with one tensor for each weight. Returns g·r before the projection, a scalar.
    """
    dot = _dot(gradients, references)
    norm = _dot(references, references)
    factor = torch.where(norm > 0, dot.clamp(max=0.0) / norm, torch.zeros_like(dot))
    torch._foreach_sub_(gradients, torch._foreach_mul(references, factor))
    return dot


def _dot(first: list[Tensor], second: list[Tensor]) -> Tensor:
    products = torch._foreach_mul(first, second)
    return torch.stack([product.sum() for product in products]).sum()
