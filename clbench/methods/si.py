"""Synaptic intelligence: a weight is as important as its movement lowered the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.quadratic import CHUNK, PullingMethod, QuadraticPull, nothing_to_hold

if TYPE_CHECKING:
    from clbench.training.stage import Context, Snapshot, Stage


class SI(PullingMethod):
    """Pull towards the previous weights, each by how much its movement lowered the loss (SI).

    During a stage every weight accumulates ``ω += −g·Δθ`` over the steps, with the
    gradient g of the task's loss alone: before the pull is added and before clipping
    (Zenke, Poole & Ganguli 2017, equation 3). At the end of the stage the importance is
    ``Ω ← max(0, Ω + ω/(Δ² + ξ))``, with Δ the weight's displacement in the stage (equation 5;
    the authors' code clips the sum at 0, without which a weight that moved against its
    gradient would be pushed away). Later stages add ``c·Σ Ω·(θ − θ*)²`` with the weights at
    the beginning of the stage as θ* (equation 4).

    Attributes
    ----------
    c
        Strength. Ω has the units of the loss over squared weights, and fine-tuning moves
        weights by far less than √ξ. The paper's value, for small networks trained from
        scratch, is therefore a weak pull here.
    xi
        ξ, which bounds Ω where a weight has hardly moved.
    """

    name: ClassVar[str] = "si"
    c: Annotated[float, Field(gt=0.0, le=1e12)] = 0.1
    xi: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1

    def setup(self, context: Context) -> None:
        """Start without importance."""
        self.importance: dict[str, Tensor] = {}

    def before_stage(self, stage: Stage) -> None:
        """Take the current weights as the anchor and the start of the path."""
        weights = dict(stage.model.named_parameters())
        shared = stage.shared_names()
        names = dict.fromkeys([*shared, *stage.model.head_parameter_names(stage.data.head)])
        self._weights = {name: weights[name] for name in names if weights[name].requires_grad}
        self._start: Snapshot = stage.snapshot(list(self._weights))
        self._before = [weight.detach().clone() for weight in self._weights.values()]
        self._integral = [torch.zeros_like(weight) for weight in self._before]
        super().before_stage(stage)

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """Return the pull towards the weights at the beginning of the stage."""
        shared = set(stage.shared_names()) & self.importance.keys()
        anchor = {name: start for name, start in self._start.items() if name in shared}
        if not anchor:
            return None
        return QuadraticPull(stage.model, anchor, self.importance, strength=self.c, half=False)

    def edit_gradients(self, stage: Stage) -> None:
        """Keep the gradients of the task's loss, then add the pull."""
        self._gradients = [weight.grad for weight in self._weights.values()]
        if self._pull is not None or stage.protocol.clip_norm is not None:  # they change below
            self._gradients = [None if g is None else g.clone() for g in self._gradients]
        super().edit_gradients(stage)

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Add ``−g·Δθ`` to the path integral; turn it into importance after the last step."""
        weights = [weight.detach() for weight in self._weights.values()]
        lists: tuple[Any, ...] = (weights, self._before, self._gradients, self._integral)
        updates = [tensors for tensors in zip(*lists, strict=True) if tensors[2] is not None]
        self._gradients = []
        if updates and stage.device.type != "cpu":
            after, before, gradients, integrals = (list(t) for t in zip(*updates, strict=True))
            torch._foreach_sub_(before, after)
            torch._foreach_addcmul_(integrals, gradients, before)
            torch._foreach_copy_(before, after)
        else:
            for tensors in updates:  # in parts that stay in the CPU's cache
                flat = (torch.split(tensor.reshape(-1), CHUNK) for tensor in tensors)
                for weight, previous, gradient, integral in zip(*flat, strict=True):
                    integral.addcmul_(gradient, previous.sub_(weight))
                    previous.copy_(weight)
        if stage.done_before + stage.step + 1 == stage.total_steps:
            if stage.has_one_class:
                stage.note(nothing_to_hold(self.name, stage))
                return
            for (name, weight), integral in zip(self._weights.items(), self._integral, strict=True):
                importance = integral.div_((weight - self._start[name]).square_().add_(self.xi))
                if name in self.importance:
                    importance.add_(self.importance[name])
                self.importance[name] = importance.clamp_(min=0.0)

    def after_stage(self, stage: Stage) -> None:
        """Release everything but the importance."""
        super().after_stage(stage)
        self._weights, self._start, self._before, self._integral = {}, {}, [], []
