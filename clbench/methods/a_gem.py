"""A-GEM: a step may not, to first order, raise the loss on kept rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from clbench.methods.rehearsal import Rehearsal, should_record

if TYPE_CHECKING:
    from clbench.training.stage import Stage


class AGem(Rehearsal):
    """Averaged gradient episodic memory: project gradients that would undo earlier tasks.

    With g the gradient of the batch and r that of rows drawn from the memory, g becomes
    g - (g·r / r·r) r wherever g·r < 0 (Chaudhry et al. 2019a, "Efficient lifelong learning
    with A-GEM", equation 11). g and r range over the weights that tasks share: backbone and
    shared heads. The settings of the memory are those of `Rehearsal`.
    """

    name: ClassVar[str] = "a-gem"

    def before_stage(self, stage: Stage) -> None:
        """Count conflicts anew."""
        self._conflicts = torch.zeros((), device=stage.device)
        self._steps = 0

    def edit_gradients(self, stage: Stage) -> None:
        """Project what conflicts with the memory; nothing waits for the device."""
        if not self.kept:
            return
        every = dict(stage.model.named_parameters())
        shared = [every[name] for name in stage.shared_names() if every[name].grad is not None]
        loss = self.recalled_loss(stage, self.draw(stage, "a-gem"))
        reference = torch.autograd.grad(loss, shared, allow_unused=True)
        pairs = [
            (weight.grad, value)
            for weight, value in zip(shared, reference, strict=True)
            if weight.grad is not None and value is not None
        ]
        dot = project([own for own, _ in pairs], [old for _, old in pairs])
        self._conflicts += dot < 0
        self._steps += 1
        if should_record(stage):
            stage.record("projected_share", self._conflicts / self._steps)

    def after_stage(self, stage: Stage) -> None:
        """Fill the memory."""
        super().after_stage(stage)
        self._conflicts = torch.zeros(())


@torch.no_grad()
def project(gradients: list[Tensor], references: list[Tensor]) -> Tensor:
    """Take from `gradients`, in place, what points against `references`.

    Parameters
    ----------
    gradients, references
        g and r, weight by weight, in equal order and shapes.

    Returns
    -------
    Tensor
        g·r as it was before, a scalar on the device of the gradients.
    """
    dot = _dot(gradients, references)
    norm = _dot(references, references)
    factor = torch.where(norm > 0, dot.clamp(max=0.0) / norm, torch.zeros_like(dot))
    torch._foreach_sub_(gradients, torch._foreach_mul(references, factor))
    return dot


def _dot(first: list[Tensor], second: list[Tensor]) -> Tensor:
    products = torch._foreach_mul(first, second)
    return torch.stack([product.sum() for product in products]).sum()
