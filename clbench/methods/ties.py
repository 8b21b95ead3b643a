"""TIES: merge the tasks' changes without those that are small or disagree (Yadav et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.merging import Merging
from clbench.methods.mofo import nth_largest

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage


class Ties(Merging):
    """Trim the changes of each task, elect a sign for each weight, and average what has it.

    Of the changes that a task makes to the backbone, the share `keep` with the largest size stays
    and the others become 0. Each weight takes the sign of the sum over tasks, and the merged change
    is the mean of the changes with that sign that are not 0 (Yadav et al. 2023, section 4 and
    Algorithm 1: trim, elect sign, disjoint merge). See `Merging` for the rest.

    Sums and numbers of the positive and the negative changes are all that this needs: 2.5 times
    the weights, however many tasks there are, besides the pretrained weights.

    Attributes
    ----------
    keep
        k: share of the backbone's changes that stays, over all tensors together.
    """

    name: ClassVar[str] = "ties"
    keep: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2

    def setup(self, context: Context) -> None:
        """Start with no task."""
        super().setup(context)
        weights = context.model.backbone_parameters()
        self.sums = {
            sign: {name: torch.zeros_like(weight) for name, weight in weights.items()}
            for sign in ("positive", "negative")
        }
        self.counts = {
            sign: {name: torch.zeros_like(value, dtype=torch.uint8) for name, value in sums.items()}
            for sign, sums in self.sums.items()
        }

    def add(self, stage: Stage, changes: Mapping[str, Tensor]) -> None:
        """Trim the task's changes and add them by sign."""
        sizes = torch.cat([change.abs().flatten() for change in changes.values()])
        smallest = nth_largest(sizes, max(1, round(self.keep * len(sizes))))
        for name, change in changes.items():
            trimmed = torch.where(change.abs() >= smallest, change, 0.0)
            for sign, part in (
                ("positive", trimmed.clamp(min=0.0)),
                ("negative", trimmed.clamp(max=0.0)),
            ):
                self.sums[sign][name] += part
                self.counts[sign][name] += part != 0.0

    def merged(self) -> dict[str, Tensor]:
        """Return the mean of the changes with the elected sign."""
        result = {}
        for name, positive in self.sums["positive"].items():
            elected = (positive + self.sums["negative"][name]).sign()
            means = {
                sign: self.sums[sign][name] / self.counts[sign][name].clamp(min=1)
                for sign in self.sums
            }
            result[name] = means["positive"] * (elected > 0) + means["negative"] * (elected < 0)
        return result
