"""Merging: train each task from the pretrained weights, and merge the changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage


class Merging(Method, ABC):
    """Base of methods that merge the changes of separately trained tasks.

    Every stage starts from the pretrained backbone and the initial head. Afterwards the changes of
    the backbone, δ_i for task i, are merged with those of the earlier tasks, and the model becomes
    ``θ_0 + scale·merge(δ_1 … δ_i)``, with which all tasks so far are scored. While a stage trains,
    its curves show the task's own weights.

    The papers merge backbones and keep the tasks' heads, as here. Of a head that tasks share, which
    each of them trains from its initial weights, an output belongs to the tasks with rows of that
    class, and gets the mean of what they trained; if it grows, that is the task that added it. The
    outputs of different tasks have never competed in training.

    A subclass adds a task's changes to running sums, so memory does not grow with the tasks.

    Attributes
    ----------
    scale
        λ: factor on the merged change.
    """

    scale: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which starts from the pretrained weights anyway."""
        return index > 0

    def setup(self, context: Context) -> None:
        """Keep the weights that each stage starts from."""
        self._start = context.snapshot([name for name, _ in context.model.named_parameters()])
        self.heads: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def before_stage(self, stage: Stage) -> None:
        """Restore the pretrained backbone and the initial head."""
        weights = dict(stage.model.named_parameters())
        head = stage.model.head_parameter_names(stage.data.head)
        for name in [*stage.model.backbone_parameters(), *head]:
            weights[name].copy_(self._start[name])

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Merge the task's changes with those of the earlier tasks."""
        weights = stage.model.backbone_parameters()
        self.add(
            stage, {name: weight.detach() - self._start[name] for name, weight in weights.items()}
        )
        for name, change in self.merged().items():
            weights[name].copy_(self._start[name] + self.scale * change)
        if stage.model.head_parameter_names(stage.data.head):
            self._merge_head(stage)

    @abstractmethod
    def add(self, stage: Stage, changes: Mapping[str, Tensor]) -> None:
        """Add a task's changes of the backbone, by name, to the state."""

    @abstractmethod
    def merged(self) -> dict[str, Tensor]:
        """Return the merged change of each weight of the backbone."""

    def _merge_head(self, stage: Stage) -> None:
        """Give each output of the stage's head the mean over the tasks that have its class."""
        weights = dict(stage.model.named_parameters())
        names = stage.model.head_parameter_names(stage.data.head)
        outputs = len(weights[names[0]])
        owned = torch.ones(outputs, device=stage.device)
        if outputs > 1:
            classes = torch.from_numpy(np.unique(stage.data.rows.labels)).to(stage.device)
            owned = torch.zeros_like(owned).index_fill_(0, classes, 1.0)
        sums = self.heads.setdefault(stage.data.head, {"tasks": torch.zeros_like(owned)})
        sums["tasks"] += owned
        for name in names:
            weight = weights[name]
            sums.setdefault(name, torch.zeros_like(weight))
            by_row = (-1, *[1] * (weight.dim() - 1))
            sums[name] += weight * owned.view(by_row)
            tasks = sums["tasks"].view(by_row)
            weight.copy_(torch.where(tasks > 0, sums[name] / tasks.clamp(min=1.0), weight))
