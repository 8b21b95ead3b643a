"""Mixout: in every step a random part of the weights is the pretrained one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.base import Method
from clbench.training.dropout import MaskStream

if TYPE_CHECKING:
    from clbench.training.batches import Batch
    from clbench.training.stage import Context, Snapshot, Stage


class Mixout(Method):
    """Compute each loss with weights of which a random share is the pretrained one.

    In place of a weight w with its pretrained value u, the forward pass of a step takes
    ``u + m·(w − u)/(1 − p)`` with m = 0 at probability p and 1 otherwise, so that its mean
    is w (Lee, Cho & Kang 2020, section 3). As in the authors' code every element of the
    matrices of dense layers draws its own m; biases, normalisation, embedding tables and
    heads stay as they are, and mixout takes the place of dropout.

    Attributes
    ----------
    p
        Probability of the pretrained value. With 0 (and `dropout`) the method is vanilla.
    anchor
        u: the ``pretrained`` weights, or the ``previous`` ones, with which the stage began.
    dropout
        Keep the model's dropout beside mixout.
    """

    name: ClassVar[str] = "mixout"
    p: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    anchor: Literal["pretrained", "previous"] = "pretrained"
    dropout: bool = False

    def setup(self, context: Context) -> None:
        """Keep the pretrained weights."""
        if self.anchor == "pretrained":
            self._anchor = context.snapshot(mixed_names(context.model.backbone))

    def before_stage(self, stage: Stage) -> None:
        """Start the stream of masks."""
        if self.anchor == "previous":
            self._anchor = stage.snapshot(mixed_names(stage.model.backbone))
        self._masks = Masks(stage.random_seed("mixout"), self.p, stage.device)
        self._weights = dict(stage.model.named_parameters())

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """The loss of the mixed weights; its gradient goes to the weights in training."""
        if not self.dropout and stage.model.training:
            stage.model.eval()
        return stage.loss(batch, weights=mixed(self._weights, self._anchor, self._masks))

    def after_stage(self, stage: Stage) -> None:
        """Let go of what belonged to the stage."""
        for name in ("_masks", "_weights", *(["_anchor"] if self.anchor == "previous" else [])):
            self.__dict__.pop(name, None)


def mixed_names(backbone: nn.Module) -> list[str]:
    """Names, from the classifier's root, of the matrices that mixout mixes.

    Every weight of two or more dimensions outside embedding tables; that takes GPT-2's
    transposed dense layers in.
    """
    tables = {
        id(parameter)
        for module in backbone.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    return [
        f"backbone.{name}"
        for name, parameter in backbone.named_parameters()
        if parameter.dim() >= 2 and id(parameter) not in tables
    ]


def mixed(weights: dict[str, nn.Parameter], anchor: Snapshot, masks: Masks) -> dict[str, Tensor]:
    """Mixed values of the weights in training that `anchor` names; gradients flow into them."""
    return {
        name: torch.lerp(value, weights[name], masks.draw(value.shape))
        for name, value in anchor.items()
        if weights[name].requires_grad
    }


class Masks:
    """A seeded stream of factors: 0 with probability `rate`, otherwise what makes the mean 1.

    On processors the probability is exact to 1/65536 and the factor fits the one drawn.
    """

    def __init__(self, seed: int, rate: float, device: torch.device) -> None:
        self._rate = rate
        self._device = device
        self._bits = MaskStream(seed) if device.type == "cpu" else None
        if self._bits is None:
            self._generator = torch.Generator(device).manual_seed(seed)

    def draw(self, shape: torch.Size) -> Tensor:
        """The next factors, float32, of that shape."""
        if self._bits is not None:
            return self._bits.mask(shape, self._rate, torch.float32)
        kept = torch.empty(shape, device=self._device)
        kept.bernoulli_(1.0 - self._rate, generator=self._generator)
        return kept.mul_(1.0 / (1.0 - self._rate))
