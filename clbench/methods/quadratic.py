"""Quadratic penalties, added directly to the gradients; SI, which needs nothing else.

Every penalty of the form ``f·λ·Σ F (θ − θ*)²`` (EWC, SI, MAS, L2-SP) has the gradient
``2·f·λ·F·(θ − θ*)``, which needs no graph: `edit_gradients` adds it in one pass over the
weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import PluginError
from clbench.methods.base import Method
from clbench.training.stage import Context, Snapshot, Stage

CHUNK = 1 << 17
"""Numbers handled at a time on the CPU, so that the differences stay in its cache."""


class QuadraticPull:
    """Pull weights towards an anchor by ``f·strength·Σ F (θ − θ*)²``, f = 1 or ½.

    Frozen weights are left alone; a weight without a gradient gets the pull as its gradient.
    Anchor and importance are used in place, not copied.

    Parameters
    ----------
    model
        The model whose weights are pulled.
    anchor
        θ* by the names of `torch.nn.Module.named_parameters`.
    importance
        F by the same names; each has its weight's shape or is a scalar tensor.
    strength
        λ.
    half
        Whether the penalty has the factor ½, so that the gradient is ``λ·F·(θ − θ*)``.

    Raises
    ------
    PluginError
        If an importance is not finite, or if the penalty is zero whatever the weights are.
    """

    def __init__(
        self,
        model: nn.Module,
        anchor: Mapping[str, Tensor],
        importance: Mapping[str, Tensor],
        *,
        strength: float,
        half: bool,
    ) -> None:
        parameters = dict(model.named_parameters())
        self._scale = float(strength) * (1.0 if half else 2.0)
        self._weights = [parameters[key] for key in anchor]
        self._anchors = [value.detach().contiguous() for value in anchor.values()]
        self._importance = [importance[key].detach().contiguous() for key in anchor]
        nonzero = False
        for key, weight, value in zip(anchor, self._weights, self._importance, strict=True):
            largest = float(value.abs().max()) if value.numel() else 0.0
            if not largest < float("inf"):
                raise PluginError(
                    f"the importance of {key} is not a finite number. Lower lr, "
                    "or use --precision float32."
                )
            nonzero = nonzero or (weight.requires_grad and self._scale * largest > 0)
        if not nonzero:
            raise PluginError(
                "the penalty is always 0, because its strength or the importance of every trained "
                "weight is 0. Raise the strength, or use vanilla to train without a penalty."
            )

    @torch.no_grad()
    def edit_gradients(self, stage: Stage | None = None) -> None:
        """Add the pull to the gradients; call it in the method's hook of the same name.

        With a `stage`, the penalty is also recorded as the curve ``penalty``.
        """
        if stage is not None and stage.is_sampled:
            stage.record("penalty", self.value())
        on_accelerator = []
        for i, weight in enumerate(self._weights):
            if not weight.requires_grad:
                continue
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if weight.device.type != "cpu":
                on_accelerator.append(i)
                continue
            parts = torch.split(weight.grad.view(-1), CHUNK)
            for (value, anchor, importance), part in zip(self._pieces(i), parts, strict=True):
                part.addcmul_(importance, value - anchor, value=self._scale)
        if on_accelerator:
            self._add_fused(on_accelerator)

    @torch.no_grad()
    def value(self) -> Tensor:
        """Return the current penalty, a float32 scalar without a graph."""
        device = self._anchors[0].device
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        total = torch.zeros((), dtype=dtype, device=device)
        for i in range(len(self._weights)):
            for weight, anchor, importance in self._pieces(i):
                total += ((weight - anchor).square_() * importance).sum()
        return (total * (self._scale / 2)).float()

    def _pieces(self, i: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Return flat parts of weight, anchor and importance number `i`."""
        weight = self._weights[i].detach()
        size = CHUNK if weight.device.type == "cpu" else max(1, weight.numel())
        tensors = (weight, self._anchors[i], self._importance[i].expand_as(weight))
        return zip(*(torch.split(tensor.reshape(-1), size) for tensor in tensors), strict=True)

    def _add_fused(self, numbers: list[int]) -> None:
        """Add the pull to the weights of these numbers in two launches, fast on accelerators."""
        weights = [self._weights[i].detach() for i in numbers]
        differences = torch._foreach_sub(weights, [self._anchors[i] for i in numbers])
        importance = [self._importance[i].expand_as(self._weights[i]) for i in numbers]
        gradients = [self._weights[i].grad for i in numbers]
        torch._foreach_addcmul_(gradients, importance, differences, value=self._scale)  # type: ignore[arg-type]


class PullingMethod(Method, ABC):
    """Base of methods whose penalty is a `QuadraticPull`, created anew for each stage."""

    _pull: QuadraticPull | None = None

    @abstractmethod
    def pull(self, stage: Stage) -> QuadraticPull | None:
        """Return the pull of a stage, or None if there is nothing to pull towards yet."""

    def before_stage(self, stage: Stage) -> None:
        """Create the stage's pull."""
        self._pull = self.pull(stage)

    def edit_gradients(self, stage: Stage) -> None:
        """Add the pull."""
        if self._pull is not None:
            self._pull.edit_gradients(stage)

    def after_stage(self, stage: Stage) -> None:
        """Release the stage's pull."""
        self._pull = None


def nothing_to_hold(method: str, stage: Stage) -> str:
    """Return a note on a stage with one class, whose loss is 0 whatever the weights are."""
    return (
        f"{method}: stage {stage.index} ({stage.name}) has one class, so its loss is 0 and the "
        "method holds nothing of it."
    )


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

    name = "si"
    c: Annotated[float, Field(gt=0.0, le=1e12)] = 0.1
    xi: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1

    def setup(self, context: Context) -> None:
        """Start without importance."""
        self.importance: dict[str, Tensor] = {}

    def before_stage(self, stage: Stage) -> None:
        """Take the current weights as the anchor and the start of the path."""
        self._weights = stage.trainable_weights()
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
