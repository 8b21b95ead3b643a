"""Memory aware synapses: importance is how much a weight moves the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.quadratic import PullingMethod, QuadraticPull
from clbench.methods.sensitivity import output_sensitivity

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage


class MAS(PullingMethod):
    """Hold on to weights by how strongly the outputs for earlier rows depend on them.

    After a stage, ``Ω += mean over rows of |∂‖f(x)‖² / ∂θ|`` with f(x) the outputs of the
    task's head without dropout, the absolute value taken for each row (Aljundi et al.
    2018, equations 2 and 3, summed over the tasks). Labels play no part. Later stages add
    ``λ·Σ Ω·(θ − θ*)²`` with the weights at the end of the last stage as θ* (equation 4).

    Attributes
    ----------
    strength
        λ.
    examples
        Rows that the mean is taken over, drawn by the cell's seed; None takes all.
    """

    name: ClassVar[str] = "mas"
    strength: Annotated[float, Field(gt=0.0, le=1e12)] = 1.0
    examples: Annotated[int, Field(gt=0)] | None = 1000

    def acts_in(self, index: int) -> bool:
        """In the first stage nothing is important yet."""
        return index > 0

    def setup(self, context: Context) -> None:
        """Nothing is important yet."""
        self.importance: dict[str, Tensor] = {}

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """The pull towards the weights with which the stage begins."""
        held = [name for name in stage.shared_names() if name in self.importance]
        if not held:
            return None
        return QuadraticPull(
            stage.model,
            stage.snapshot(held),
            self.importance,
            strength=self.strength,
            half=False,
            name=self.name,
        )

    def after_stage(self, stage: Stage) -> None:
        """Add what matters to the task just learned, unless none follows."""
        super().after_stage(stage)
        if stage.index == stage.stages - 1:
            return
        count = len(stage.data.rows)
        rows = np.arange(count)
        if self.examples is not None and self.examples < count:
            drawn = torch.randperm(count, generator=stage.rng("mas"))[: self.examples]
            rows = drawn.numpy()
        for name, value in output_sensitivity(stage, rows).items():
            known = self.importance.get(name)
            self.importance[name] = value if known is None else known + value
