"""Pulls by the importance of synapses: by their path (SI), or the sensitivity of outputs (MAS)."""

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.fisher.diagonal import absolute_gradients
from clbench.methods.quadratic import CHUNK, PullingMethod, QuadraticPull
from clbench.models.encoding import IGNORED
from clbench.tasks.task import IntArray
from clbench.training.batches import Batch
from clbench.training.context import Context, Snapshot
from clbench.training.stage import Stage


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
    holds_head = True
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
        # In bfloat16, a sum would lose the terms of later steps.
        self._integral = [torch.zeros_like(w, dtype=torch.float32) for w in self._before]
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
            if self.holds_nothing(stage):
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


class MAS(PullingMethod):
    """Pull towards the previous weights, each by how sensitive the outputs are to it (MAS).

    After a stage, ``Ω += mean over rows of |∂‖f(x)‖² / ∂θ|`` with f(x) the outputs of the
    task's head without dropout, the absolute value taken row by row (Aljundi et al.
    2018, equations 2 and 3, summed over the tasks). No labels are used. Later stages add
    ``λ·Σ Ω·(θ − θ*)²`` with the weights at the end of the previous stage as θ* (equation 4).

    Attributes
    ----------
    strength
        λ.
    examples
        Number of rows to average over, drawn by the cell's seed; None takes all.
    """

    name = "mas"
    holds_head = True
    strength: Annotated[float, Field(gt=0.0, le=1e12)] = 1.0
    examples: Annotated[int, Field(gt=0)] | None = 1000

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which has no earlier task."""
        return index > 0

    def setup(self, context: Context) -> None:
        """Start without importance."""
        self.importance: dict[str, Tensor] = {}

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """Return the pull towards the weights with which the stage begins."""
        names = [name for name in stage.shared_names() if name in self.importance]
        if not names:
            return None
        anchor = stage.snapshot(names)
        return QuadraticPull(
            stage.model, anchor, self.importance, strength=self.strength, half=False
        )

    def after_stage(self, stage: Stage) -> None:
        """Add the importance for the task just learned, unless it is the last one."""
        super().after_stage(stage)
        if stage.index == stage.stages - 1:
            return
        count = len(stage.data.rows)
        rows = np.arange(count)
        if self.examples is not None and self.examples < count:
            rows = torch.randperm(count, generator=stage.rng("mas"))[: self.examples].numpy()
        for name, value in output_sensitivity(stage, rows).items():
            earlier = self.importance.get(name)
            self.importance[name] = value if earlier is None else earlier + value


def output_sensitivity(stage: Stage, rows: IntArray) -> dict[str, Tensor]:
    """Return the mean over rows of the absolute gradients of the outputs' squared norm.

    The gradient of each row is formed from the inputs and output gradients of each layer, as
    for the Fisher information, and checked on two rows against plain backward passes. Weights
    for which they disagree get one backward pass per row.

    Parameters
    ----------
    stage
        Supplies the model and the task's head; dropout is turned off.
    rows
        Positions among the stage's rows, shape (n,).

    Returns
    -------
    dict of Tensor
        By name, for each trainable weight of the backbone and the task's head.
    """
    batches = stage.data.longest_first(stage.protocol.batch_of(stage.name), stage.device, rows)
    weights = stage.trainable_weights()
    return absolute_gradients(stage.model, batches, squared_norms, weights, stage.precision)


def squared_norms(model: nn.Module, batch: Batch) -> Tensor:
    """Return the squared norm of each row's outputs, padding left out, shape (b,)."""
    squares: Tensor = model(batch.inputs, batch.head).float().square()
    if batch.asks_for_words:
        squares = squares * (batch.labels != IGNORED)[..., None]
    return squares.flatten(1).sum(1)
