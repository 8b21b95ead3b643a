"""PackNet: each task gets its own weights, freed by pruning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.methods.base import Method, Phase

if TYPE_CHECKING:
    from clbench.models.classifier import TaskModel
    from clbench.training.stage import Context, Snapshot, Stage


class PackNet(Method):
    """Train the free weights, prune the smallest of them, retrain the rest; then fix them.

    Mallya & Lazebnik 2018, sections 3 and 4. In each weight matrix of the backbone the
    fraction `prune` of the weights that the task trained, smallest magnitudes first, is set
    to zero and left to later tasks; the rest belongs to the task and never changes again.
    Biases, norms and embeddings are trained by the first task and fixed afterwards. A task
    is scored with the weights of the tasks up to it and with its own copy of the head, so
    nothing is forgotten, shared head or not. The task of each row must be known.

    Attributes
    ----------
    prune
        Fraction freed after each task, or ``equal``: of T tasks, task i (from 0) keeps 1/(T-i)
        of the free weights, so that all get equal parts and the last one leaves nothing.
    retrain
        Steps of training after pruning, as a fraction of the stage's own.
    """

    name: ClassVar[str] = "packnet"
    needs_task_id: ClassVar[bool] = True
    prune: Annotated[float, Field(gt=0.0, lt=1.0)] | Literal["equal"] = 0.5
    retrain: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        """Whether the number of tasks decides how much each one keeps."""
        return self.prune == "equal"

    def setup(self, context: Context) -> None:
        """Find the matrices; all their weights are free (owner 0; task i is owner i + 1).

        Raises a SettingsError if the first tasks will leave no weight to a later one.
        """
        self._context = context
        self._weights = matrices(context.model)
        free = [weight.numel() for weight in self._weights.values()]
        for index in range(context.stages):
            if not any(free):
                raise SettingsError(
                    f"method 'packnet': prune = {self.prune} leaves no weights to task {index + 1} "
                    f'of {context.stages}. Raise prune, or set it to "equal".'
                )
            share = self._pruned_share(context, index)
            free = [round(share * count) for count in free]
        self.owner = {
            name: torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device)
            for name, weight in self._weights.items()
        }
        self.heads: dict[int, Snapshot] = {}

    def before_stage(self, stage: Stage) -> None:
        """From the second task on, freeze all of the backbone but its matrices."""
        if self.heads:
            for name, value in stage.model.backbone_parameters().items():
                value.requires_grad_(name in self.owner)

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return two phases: training as long as the protocol says, then retraining."""
        steps, _ = stage.protocol.stage_length(stage.name, len(stage.data.rows))
        return [Phase("train"), Phase("retrain", steps=math.ceil(self.retrain * steps))]

    def before_phase(self, stage: Stage) -> None:
        """Prune before retraining; select the weights that may change."""
        owner = 0 if stage.phase == 0 else stage.index + 1
        if owner:
            self._prune(stage)
        self._free = {name: owners == owner for name, owners in self.owner.items()}
        # Adam keeps a weight whose gradients have always been zero; weight decay does not.
        decays = stage.protocol.weight_decay > 0
        self._backup = {n: w.detach().clone() for n, w in self._weights.items()} if decays else {}

    @torch.no_grad()
    def edit_gradients(self, stage: Stage) -> None:
        """Zero the gradients of weights that must not change."""
        if stage.phase == 0 and not self.heads:
            return  # all weights are free
        for name, weight in self._weights.items():
            if weight.grad is not None:
                weight.grad.mul_(self._free[name])

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Restore the weights that only weight decay changed."""
        for name, backup in self._backup.items():
            weight = self._weights[name]
            weight.copy_(torch.where(self._free[name], weight, backup))

    def after_stage(self, stage: Stage) -> None:
        """Keep a copy of the task's head."""
        self.heads[stage.index] = stage.snapshot(stage.model.head_parameter_names(stage.data.head))

    @torch.no_grad()
    def scoring(self, task: int) -> AbstractContextManager[object]:
        """Score a finished task with the weights of the tasks up to it and its own head."""
        if task not in self.heads:
            return nullcontext()
        own = {
            name: self._weights[name] * ((owner > 0) & (owner <= task + 1))
            for name, owner in self.owner.items()
        }
        return self._context.swapped({**own, **self.heads[task]})

    def _pruned_share(self, context: Context, index: int) -> float:
        """Return the share of the free weights that task `index`, from 0, leaves free."""
        remaining = context.stages - index
        return (remaining - 1) / remaining if self.prune == "equal" else self.prune

    @torch.no_grad()
    def _prune(self, stage: Stage) -> None:
        """Give the task the largest of its weights, matrix by matrix, and zero the others."""
        share = self._pruned_share(stage, stage.index)
        free_count = 0
        for name, weight in self._weights.items():
            owner = self.owner[name].view(-1)
            free = owner == 0
            count = int(free.sum())
            size = count - round(share * count)
            sizes = torch.where(free, weight.detach().abs().reshape(-1), -1.0)
            owner[sizes.topk(size).indices] = stage.index + 1
            weight.mul_(self.owner[name] > 0)
            free_count += count - size
        total = sum(owner.numel() for owner in self.owner.values())
        stage.record("free_share", free_count / total)


def matrices(model: TaskModel) -> dict[str, Tensor]:
    """Return the backbone's weight matrices (and convolutions) by name, without embeddings."""
    inside = model.backbone_parameters()
    return {
        f"{path}.weight": inside[f"{path}.weight"]
        for path, module in model.named_modules()
        if f"{path}.weight" in inside
        and inside[f"{path}.weight"].dim() >= 2
        and not isinstance(module, nn.Embedding)
    }
