"""SAM: sharpness-aware minimisation (Foret et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field

from clbench.core.errors import SettingsError
from clbench.methods.base import Method, should_record

if TYPE_CHECKING:
    from torch import Tensor

    from clbench.training.batches import Batch
    from clbench.training.protocol import Protocol
    from clbench.training.stage import Stage


class Sam(Method):
    """Step along the gradient at the nearby weights where the loss is largest.

    With g the gradient of the batch at the weights θ, the optimizer gets the gradient at
    ``θ + ρ·g/‖g‖`` instead, which leads to flat minima (Foret et al. 2021, equations 2 and 3,
    Algorithm 1); in these, later tasks raise the loss less (Mehta et al. 2023; Li et al. 2024,
    arXiv 2406.04836). The norm is that of all weights that the stage trains. Both passes see the
    same batch and drop the same units. The curve ``sharpness`` is the difference of the two losses.

    Attributes
    ----------
    rho
        ρ: distance of the nearby weights.
    """

    name: ClassVar[str] = "sam"
    rho: Annotated[float, Field(gt=0.0, le=100.0)] = 0.05

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse parts of batches, since the second pass needs the whole one."""
        if protocol.accumulation > 1 or protocol.gradient_checkpointing:
            raise SettingsError(
                "its second pass needs whole batches and activations. Set accumulation = 1 and "
                "gradient_checkpointing = false in [protocol]."
            )

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss, and keep the batch for the second pass."""
        loss = stage.loss(batch)
        self._batch, self._loss = batch, loss.detach()
        return loss

    def edit_gradients(self, stage: Stage) -> None:
        """Replace the gradients by those at the nearby weights, without moving the weights."""
        trained = {id(weight) for weight in stage.trainable()}
        weights = {
            name: weight
            for name, weight in stage.model.named_parameters()
            if id(weight) in trained and weight.grad is not None
        }
        gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
        with torch.no_grad():
            norm = torch.stack(torch._foreach_norm(gradients)).norm()
            torch._foreach_mul_(gradients, self.rho / (norm + 1e-12))
            torch._foreach_add_(gradients, [*weights.values()])
        nearby = {
            name: value.requires_grad_() for name, value in zip(weights, gradients, strict=True)
        }
        stage.restart_dropout()
        loss = stage.loss(self._batch, weights=nearby)
        slopes = torch.autograd.grad(loss, gradients)
        for weight, slope in zip(weights.values(), slopes, strict=True):
            weight.grad = slope
        if should_record(stage):
            stage.record("sharpness", loss.detach() - self._loss)
