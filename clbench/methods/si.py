"""Synaptic intelligence: importance is what a weight did for the loss on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.quadratic import CHUNK, PullingMethod, QuadraticPull

if TYPE_CHECKING:
    from clbench.training.stage import Context, Snapshot, Stage


class SI(PullingMethod):
    """Hold on to weights by how much their movement lowered the earlier tasks' losses.

    While a task is trained, every weight sums ``ω += −g·Δθ`` over the steps, with the
    gradient g of the task's loss alone: before the pull is added and before clipping
    (Zenke, Poole & Ganguli 2017, equation 3). At the end of the stage the importance is
    ``Ω ← max(0, Ω + ω/(Δ² + ξ))``, with Δ the weight's way in the stage (equation 5; the
    authors' code clips the sum at 0, without which a weight that went against its gradient
    would be pushed away). Later stages add ``c·Σ Ω·(θ − θ*)²`` with the weights at the
    stage's beginning as θ* (equation 4).

    Attributes
    ----------
    c
        Strength. Ω has the units of the loss over squared weights, and fine-tuning moves
        weights by far less than √ξ, so the paper's value, found on small networks trained
        from scratch, is a weak pull here.
    xi
        ξ, which bounds Ω where a weight has hardly moved.
    """

    name: ClassVar[str] = "si"
    c: Annotated[float, Field(gt=0.0, le=1e12)] = 0.1
    xi: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1

    def setup(self, context: Context) -> None:
        """Nothing is important yet."""
        self.importance: dict[str, Tensor] = {}

    def before_stage(self, stage: Stage) -> None:
        """Take the weights as anchor and as the beginning of the way."""
        weights = dict(stage.model.named_parameters())
        shared = stage.shared_names()
        names = dict.fromkeys([*shared, *stage.model.head_parameter_names(stage.data.head)])
        trained = [name for name in names if weights[name].requires_grad]
        self._start: Snapshot = stage.snapshot(trained)
        self._path = Path([weights[name] for name in trained])
        super().before_stage(stage)

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """The pull towards the beginning of the way."""
        shared = set(stage.shared_names())
        held = [name for name in self._start if name in self.importance and name in shared]
        if not held:
            return None
        anchor = {name: self._start[name] for name in held}
        return QuadraticPull(
            stage.model, anchor, self.importance, strength=self.c, half=False, name=self.name
        )

    def edit_gradients(self, stage: Stage) -> None:
        """Note the gradients of the task's loss, then add the pull."""
        changed = self._pull is not None or stage.protocol.clip_norm is not None
        self._path.note_gradients(copy=changed)
        super().edit_gradients(stage)

    def after_step(self, stage: Stage) -> None:
        """Go on along the way; at its end turn it into importance.

        What is kept between stages is then the importance alone.
        """
        self._path.add_step()
        if stage.done_before + stage.step + 1 == stage.total_steps:
            self._consolidate(stage)

    def after_stage(self, stage: Stage) -> None:
        """Let go of what belonged to the stage."""
        super().after_stage(stage)
        self.__dict__.pop("_path", None)
        self.__dict__.pop("_start", None)

    @torch.no_grad()
    def _consolidate(self, stage: Stage) -> None:
        weights = dict(stage.model.named_parameters())
        for (name, start), integral in zip(self._start.items(), self._path.integral, strict=True):
            gained = integral.div_((weights[name] - start).square_().add_(self.xi))
            if name in self.importance:
                gained.add_(self.importance[name])
            self.importance[name] = gained.clamp_(min=0.0)


class Path:
    """The sum of ``−g·Δθ`` over the steps, for each number of some weights.

    Parameters
    ----------
    weights
        Followed from where they are now on.

    Attributes
    ----------
    integral
        One tensor a weight.
    """

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self._weights = [weight.detach() for weight in weights]
        self._parameters = weights
        self._before = [weight.clone() for weight in self._weights]
        self._gradients: list[Tensor | None] = []
        self.integral = [torch.zeros_like(weight) for weight in self._weights]

    def note_gradients(self, *, copy: bool) -> None:
        """Take the gradients of the coming step; a `copy` where they will still be changed."""
        self._gradients = [
            weight.grad.clone() if copy and weight.grad is not None else weight.grad
            for weight in self._parameters
        ]

    def add_step(self) -> None:
        """Add the step that was taken with the noted gradients."""
        moved = [
            (weight, before, gradient, integral)
            for weight, before, gradient, integral in zip(
                self._weights, self._before, self._gradients, self.integral, strict=True
            )
            if gradient is not None
        ]
        self._gradients = []
        if moved and moved[0][0].device.type != "cpu":
            now, before, slopes, integrals = (list(tensors) for tensors in zip(*moved, strict=True))
            torch._foreach_sub_(before, now)
            torch._foreach_addcmul_(integrals, slopes, before)
            torch._foreach_copy_(before, now)
            return
        for tensors in moved:  # on processors in parts that stay in the cache
            flat = (torch.split(tensor.reshape(-1), CHUNK) for tensor in tensors)
            for now_part, before_part, slope, integral_part in zip(*flat, strict=True):
                integral_part.addcmul_(slope, before_part.sub_(now_part))
                before_part.copy_(now_part)
