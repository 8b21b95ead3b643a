"""WiSE-FT: average the weights before and after a stage (Wortsman et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field

from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.stage import Stage


class WiseFT(Method):
    """Fine-tune as vanilla; then average the shared weights with those before the stage.

    After every stage but the first, w becomes (1 − `alpha`)·before + `alpha`·after (Wortsman et
    al. 2022, section 3), with one `alpha` for all weights that earlier tasks trained too: the
    backbone, and the head if an earlier task shares it. A new head keeps its trained weights,
    since before the stage it was random. The next stage starts from the average.

    Attributes
    ----------
    alpha
        Share of the trained weights; 1 is vanilla, 0 undoes the stage except for a new head.
    """

    name: ClassVar[str] = "wise-ft"
    control: ClassVar[bool] = True
    only_consolidates: ClassVar[bool] = True
    alpha: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, before which there is nothing to retain."""
        return index > 0 and self.alpha < 1.0

    def before_stage(self, stage: Stage) -> None:
        """Keep the shared weights."""
        self.before = stage.snapshot(stage.shared_names())

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Average the shared weights; those that did not change stay equal in every bit."""
        if not self.acts_in(stage.index):
            return
        weights = dict(stage.model.named_parameters())
        for name, value in self.before.items():
            weights[name].copy_(value.lerp(weights[name], self.alpha))
        self.before = {}
