"""DARE: drop most of the tasks' changes, rescale the others, and merge them (Yu et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.merging import Merging

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage


class Dare(Merging):
    """Drop each change of the backbone at random, rescale the others, and add up the tasks.

    A change that a task makes to a weight becomes 0 with probability `drop` = p and is divided by
    1 − p otherwise, which keeps its mean; then the tasks are combined (Yu et al. 2024, section 3;
    their sum times `scale` is task arithmetic, Ilharco et al. 2023). See `Merging` for the rest.

    The sum of the dropped changes is all that this needs: the weights once, however many tasks
    there are, besides the pretrained weights.

    Attributes
    ----------
    drop
        p; 0 is task arithmetic without dropping.
    combine
        ``sum`` or ``mean`` over the tasks.
    """

    name: ClassVar[str] = "dare"
    drop: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    combine: Literal["sum", "mean"] = "sum"

    def setup(self, context: Context) -> None:
        """Start with no task."""
        super().setup(context)
        weights = context.model.backbone_parameters()
        self.sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.tasks = 0

    def add(self, stage: Stage, changes: Mapping[str, Tensor]) -> None:
        """Drop most of the task's changes, and add the others, rescaled."""
        generator = stage.rng("dare")
        for name, change in changes.items():
            kept = torch.rand(change.shape, generator=generator) >= self.drop
            self.sums[name] += change * kept.to(change.device) / (1.0 - self.drop)
        self.tasks += 1

    def merged(self) -> dict[str, Tensor]:
        """Return the sum or the mean over the tasks."""
        divisor = self.tasks if self.combine == "mean" else 1
        return {name: value / divisor for name, value in self.sums.items()}
