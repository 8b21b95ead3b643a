"""The pull of a quadratic penalty, added straight to the gradients.

Every penalty of the form ``f·λ·Σ F (θ − θ*)²`` (EWC, SI, MAS, L2-SP) has the gradient
``2·f·λ·F·(θ − θ*)``, which needs no graph: adding it in ``edit_gradients`` takes one pass
over the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from clbench.errors import PluginError
from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.stage import Stage

CHUNK = 1 << 17
"""Numbers handled at a time on processors: the differences stay in the cache."""
POINTS = 30
"""Points of the penalty's curve in a stage, at most; each waits for the device."""


class QuadraticPull:
    """Pulls weights towards an anchor by ``f·strength·Σ F (θ − θ*)²``, f = 1 or ½.

    Frozen weights are left alone; a weight without a gradient gets the pull as its gradient.
    Nothing is copied: anchor and importance stay the method's own tensors.

    Parameters
    ----------
    model
        Its weights are pulled.
    anchor
        θ* by the names of `torch.nn.Module.named_parameters`.
    importance
        F by the same names, each of its weight's shape or a scalar tensor; or one number
        for all weights.
    strength
        λ, above 0.
    half
        Whether the penalty has the factor ½: the gradient is ``λ·F·(θ − θ*)`` with it and
        ``2·λ·F·(θ − θ*)`` without.
    name
        The method's, for messages.

    Raises
    ------
    PluginError
        If the penalty would be zero whatever the weights do (nothing to pull, no
        importance above 0, strength 0), if numbers are not finite, or if names or shapes do
        not fit the model.
    """

    def __init__(
        self,
        model: nn.Module,
        anchor: Mapping[str, Tensor],
        importance: Mapping[str, Tensor] | float,
        *,
        strength: float,
        half: bool,
        name: str,
    ) -> None:
        self.strength = float(strength)
        self.half = half
        self._scale = self.strength * (1.0 if half else 2.0)
        parameters = dict(model.named_parameters())
        _check_names(name, parameters, anchor, importance)
        self._weights = [parameters[key] for key in anchor]
        self._anchors = [anchor[key].detach().contiguous() for key in anchor]
        self._importance = [
            torch.tensor(float(importance), device=value.device)
            if isinstance(importance, float | int)
            else importance[key].detach().contiguous()
            for key, value in anchor.items()
        ]
        self._check_effect(name, list(anchor))

    @torch.no_grad()
    def edit_gradients(self, stage: Stage | None = None) -> None:
        """Add the pull to the gradients; call it in the hook of that name.

        With a `stage` the penalty is also recorded as the curve ``penalty``, sparingly.
        """
        if stage is not None:
            self.record(stage)
        active = [i for i, weight in enumerate(self._weights) if weight.requires_grad]
        for i in active:
            if self._weights[i].grad is None:
                self._weights[i].grad = torch.zeros_like(self._weights[i])
        on_cpu = [i for i in active if self._weights[i].device.type == "cpu"]
        self._add_fused([i for i in active if self._weights[i].device.type != "cpu"])
        buffer = torch.empty(CHUNK)
        for i in on_cpu:
            gradient = self._weights[i].grad
            assert gradient is not None
            if not gradient.is_contiguous():
                self._add_fused([i])
                continue
            pieces = zip(self._pieces(i), torch.split(gradient.view(-1), CHUNK), strict=True)
            for (weight, anchor, importance), part in pieces:
                out = buffer[: len(part)] if part.dtype == buffer.dtype else None
                difference = torch.sub(weight, anchor, out=out)
                part.addcmul_(importance, difference, value=self._scale)

    @torch.no_grad()
    def value(self) -> Tensor:
        """The penalty now: a float32 scalar without a graph."""
        total = torch.zeros((), dtype=torch.float64 if self._on_cpu() else torch.float32)
        total = total.to(self._anchors[0].device)
        for i in range(len(self._weights)):
            for weight, anchor, importance in self._pieces(i):
                total += ((weight - anchor).square_() * importance).sum()
        return (total * (self._scale / 2)).float()

    def record(self, stage: Stage, name: str = "penalty") -> None:
        """Add a point to the curve `name`, at most `POINTS` times in a stage."""
        done = stage.done_before + stage.step
        if done % max(1, math.ceil(stage.total_steps / POINTS)) == 0:
            stage.record(name, self.value())

    def _pieces(self, i: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Flat parts of weight, anchor and importance number `i`."""
        weight, anchor = self._weights[i].detach(), self._anchors[i]
        importance = self._importance[i]
        size = CHUNK if weight.device.type == "cpu" else max(1, weight.numel())
        whole = importance.numel() == weight.numel()
        parts = torch.split(importance.view(-1), size) if whole else None
        flat = zip(
            torch.split(weight.reshape(-1), size), torch.split(anchor.view(-1), size), strict=True
        )
        for number, (now, then) in enumerate(flat):
            yield now, then, importance.view(()) if parts is None else parts[number]

    def _add_fused(self, which: list[int]) -> None:
        """All tensors in two launches."""
        if not which:
            return
        gradients = [self._weights[i].grad for i in which]
        differences = torch._foreach_sub(
            [self._weights[i].detach() for i in which], [self._anchors[i] for i in which]
        )
        importance = [
            value if value.shape == difference.shape else value.expand_as(difference)
            for value, difference in zip(
                (self._importance[i] for i in which), differences, strict=True
            )
        ]
        torch._foreach_addcmul_(gradients, importance, differences, value=self._scale)  # type: ignore[arg-type]

    def _on_cpu(self) -> bool:
        return self._anchors[0].device.type == "cpu"

    def _check_effect(self, method: str, names: list[str]) -> None:
        if not self._scale > 0 or not math.isfinite(self._scale):
            raise PluginError(
                f"method {method!r}: the strength of its penalty is {self.strength}. It must be "
                "a number above 0; for no penalty use vanilla."
            )
        acting = False
        for key, weight, importance in zip(names, self._weights, self._importance, strict=True):
            largest = importance.abs().max() if importance.numel() else torch.zeros(())
            if not bool(torch.isfinite(largest)):
                raise PluginError(
                    f"method {method!r}: the importance of {key} is no longer a finite number. "
                    "Lower the learning rate, or use --precision float32."
                )
            acting = acting or (weight.requires_grad and float(largest) > 0)
        if not acting:
            raise PluginError(
                f"method {method!r}: the importance of every weight that is trained is 0, so its "
                "penalty would be 0 whatever the weights do."
            )


class PullingMethod(Method):
    """A method whose penalty is a `QuadraticPull`, made anew for each stage."""

    _pull: QuadraticPull | None = None

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """What the stage pulls towards, or None if there is nothing yet."""
        raise NotImplementedError

    def before_stage(self, stage: Stage) -> None:
        """Ready the pull."""
        self._pull = self.pull(stage)

    def edit_gradients(self, stage: Stage) -> None:
        """Add the pull."""
        if self._pull is not None:
            self._pull.edit_gradients(stage)

    def after_stage(self, stage: Stage) -> None:
        """Let go of what belonged to the stage."""
        self._pull = None


def _check_names(
    method: str,
    parameters: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor],
    importance: Mapping[str, Tensor] | float,
) -> None:
    if not anchor:
        raise PluginError(f"method {method!r}: its anchor names no weight: nothing to pull.")
    for key, value in anchor.items():
        if key not in parameters:
            raise PluginError(f"method {method!r}: its anchor has {key}, which the model has not.")
        if value.shape != parameters[key].shape:
            raise PluginError(
                f"method {method!r}: the anchor of {key} has the shape {tuple(value.shape)}, the "
                f"weight {tuple(parameters[key].shape)}."
            )
        if isinstance(importance, float | int):
            continue
        if key not in importance:
            raise PluginError(f"method {method!r}: {key} has an anchor but no importance.")
        if importance[key].numel() != 1 and importance[key].shape != value.shape:
            raise PluginError(
                f"method {method!r}: the importance of {key} has the shape "
                f"{tuple(importance[key].shape)}, the weight {tuple(value.shape)}."
            )
