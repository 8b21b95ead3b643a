"""Mixout: each step replaces a random share of the weights by their pretrained values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.methods.base import Method
from clbench.training.dropout import MaskStream

if TYPE_CHECKING:
    from clbench.training.batches import Batch
    from clbench.training.protocol import Protocol
    from clbench.training.stage import Context, Snapshot, Stage


class Mixout(Method):
    """Compute each loss with a random share of the weights at their pretrained values.

    In place of a weight w with the pretrained value u, the forward pass of a step uses
    ``u + m·(w − u)/(1 − p)`` with m = 0 at probability p and 1 otherwise, whose mean
    is w (Lee, Cho & Kang 2020, section 3). As in the authors' code every element of the
    matrices of dense layers draws its own m; biases, normalisation, embedding tables and
    heads are not mixed, and mixout replaces dropout.

    Attributes
    ----------
    p
        Probability of the pretrained value. With 0 and `dropout` the method equals vanilla.
    anchor
        u: the ``pretrained`` weights, or the ``previous`` ones, with which the stage began.
    dropout
        Whether to keep the model's dropout.
    """

    name: ClassVar[str] = "mixout"
    runs_in_trainer: ClassVar[bool] = True
    p: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    anchor: Literal["pretrained", "previous"] = "pretrained"
    dropout: bool = False

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse gradient checkpointing, which computes the forward pass again without mixing."""
        if protocol.gradient_checkpointing:
            raise SettingsError(
                "mixout: gradient_checkpointing computes the forward pass again with unmixed "
                "weights. Set gradient_checkpointing = false."
            )

    def setup(self, context: Context) -> None:
        """Keep the pretrained weights."""
        if self.anchor == "pretrained":
            self._anchor = context.snapshot(matrix_names(context.model.backbone))

    def before_stage(self, stage: Stage) -> None:
        """Start the stream of masks."""
        if self.anchor == "previous":
            self._anchor = stage.snapshot(matrix_names(stage.model.backbone))
        self._masks = Masks(stage.random_seed("mixout"), self.p, stage.device)
        self._weights = dict(stage.model.named_parameters())

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the mixed weights; its gradient goes to the trained weights."""
        if not self.dropout and stage.model.training:
            stage.model.eval()
        return stage.loss(batch, weights=mix(self._weights, self._anchor, self._masks))


def matrix_names(backbone: nn.Module) -> list[str]:
    """Return the names, from the classifier's root, of the matrices that mixout mixes.

    These are all weights of two or more dimensions outside embedding tables, which includes
    GPT-2's transposed dense layers.
    """
    tables = {id(m.weight) for m in backbone.modules() if isinstance(m, nn.Embedding)}
    return [
        f"backbone.{name}"
        for name, parameter in backbone.named_parameters()
        if parameter.dim() >= 2 and id(parameter) not in tables
    ]


def mix(weights: dict[str, nn.Parameter], anchor: Snapshot, masks: Masks) -> dict[str, Tensor]:
    """Return the trained weights mixed with those of `anchor`; gradients flow to the weights."""
    return {
        name: torch.lerp(value, weights[name], masks.draw(value.shape).to(value.dtype))
        for name, value in anchor.items()
        if weights[name].requires_grad
    }


class Masks:
    """A seeded stream of factors of mean 1 that are 0 with probability `rate`.

    On the CPU the probability is rounded to 1/65536, and the factor fits the rounded one.
    """

    def __init__(self, seed: int, rate: float, device: torch.device) -> None:
        self._rate = rate
        self._device = device
        self._bits = MaskStream(seed) if device.type == "cpu" else None
        self._generator = torch.Generator(device).manual_seed(seed)

    def draw(self, shape: torch.Size) -> Tensor:
        """Return the next factors, float32, of the given shape."""
        if self._bits is not None:
            return self._bits.mask(shape, self._rate, torch.float32)
        factors = torch.empty(shape, device=self._device)
        factors.bernoulli_(1.0 - self._rate, generator=self._generator)
        return factors.mul_(1.0 / (1.0 - self._rate))
