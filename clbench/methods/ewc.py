"""Elastic weight consolidation: hold the weights that earlier tasks need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from clbench.fisher.diagonal import diagonal_fisher
from clbench.fisher.losses import take
from clbench.methods.quadratic import PullingMethod, QuadraticPull

if TYPE_CHECKING:
    from clbench.fisher.losses import AnyBatch
    from clbench.training.stage import Snapshot, Stage


class EWC(PullingMethod):
    """Pull towards the weights after each earlier task, by their Fisher information (EWC).

    Adds ``f·importance·Σ_j Σ F_j (θ − θ_j*)²`` from the second stage on, with θ_j* the
    weights after task j and F_j the diagonal Fisher information of its loss there, over
    its training rows (Kirkpatrick et al. 2017, eq. 3, and its footnote on several
    penalties). F is the mean over rows of squared gradients of a row's loss; it is not
    normalised further, and the importance keeps its meaning only together with `mode` and
    `half`. The sum is kept as one: the F_j are added, and the common anchor is their
    weighted mean of the θ_j*, which has the same gradient.

    Attributes
    ----------
    importance
        λ. Not portable between data sets or code bases.
    half
        Whether the penalty has the factor f = ½, as in eq. 3.
    mode
        ``sampled``: labels drawn from the model, row by row (the Fisher information);
        ``empirical``: the true labels; ``batched``: squares of the gradients of batches of
        the protocol's size, smaller by about that size (van de Ven 2025).
    examples
        Rows that F is computed from, at most; None takes all.
    """

    name: ClassVar[str] = "ewc"
    importance: Annotated[float, Field(gt=0.0, le=1e12)] = 1000.0
    half: bool = True
    mode: Literal["sampled", "empirical", "batched"] = "sampled"
    examples: Annotated[int, Field(ge=1)] | None = 2000

    def acts_in(self, index: int) -> bool:
        """There is nothing to hold in the first stage."""
        return index > 0

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """The pull on the weights that this stage shares with earlier ones."""
        anchor: dict[str, Tensor] = getattr(self, "anchor", {})
        shared = [name for name in stage.shared_names() if name in anchor]
        if not shared:
            return None
        return QuadraticPull(
            stage.model,
            {name: anchor[name] for name in shared},
            self.fisher,
            strength=self.importance,
            half=self.half,
            name=self.name,
        )

    def after_stage(self, stage: Stage) -> None:
        """Take in the task that was just learned, unless it was the last."""
        super().after_stage(stage)
        if stage.index == stage.stages - 1:
            return
        names = self._held(stage)
        found = self._measure(stage, names)
        weights = stage.snapshot(names)
        if not hasattr(self, "fisher"):
            self.fisher, self.anchor = found, weights
            return
        self._take_in(found, weights)

    def _take_in(self, found: dict[str, Tensor], weights: Snapshot) -> None:
        """Add a task's importance; move the anchor to the weighted mean."""
        for name, fisher in found.items():
            weight = weights[name]
            if name not in self.fisher:
                self.fisher[name], self.anchor[name] = fisher, weight
                continue
            total = self.fisher[name] + fisher
            share = torch.where(total > 0, fisher / total, torch.ones_like(total))
            self.anchor[name] = torch.lerp(self.anchor[name], weight, share)
            self.fisher[name] = total

    def _held(self, stage: Stage) -> list[str]:
        """The backbone's weights, and those of the head, which a later task may share."""
        names = [*stage.model.backbone_parameters()]
        names += stage.model.head_parameter_names(stage.data.head)
        required = {n for n, p in stage.model.named_parameters() if p.requires_grad}
        return [name for name in names if name in required]

    def _measure(self, stage: Stage, names: list[str]) -> dict[str, Tensor]:
        return diagonal_fisher(
            stage.model,
            self._rows(stage),
            "task",
            self.mode,
            generator=stage.rng("fisher-labels"),
            names=names,
            precision="bf16" if stage.precision.name == "bf16" else "float32",
        )

    def _rows(self, stage: Stage) -> Iterator[AnyBatch]:
        """At most `examples` of the stage's own rows."""
        size = stage.protocol.batch_of(stage.name)
        batches = stage.batches("fisher-rows", batch_size=size)
        if self.examples is None:
            yield from batches
            return
        left = self.examples
        for batch in batches:
            yield batch if len(batch) <= left else take(batch, list(range(left)))
            left -= len(batch)
            if left <= 0:
                return
