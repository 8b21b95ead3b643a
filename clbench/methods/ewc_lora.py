"""EWC-LoRA: one low-rank addition for all tasks, held where earlier tasks need its product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from clbench.fisher.diagonal import Mode
from clbench.methods.base import should_record
from clbench.methods.ewc import task_fisher
from clbench.methods.lora import ADAPTER, LowRank

if TYPE_CHECKING:
    from clbench.training.stage import Context, Snapshot, Stage


class EWCLora(LowRank):
    """Train one low-rank addition, pulled to the previous task's by Fisher information (EWC-LoRA).

    With ΔW = (`alpha` / `r`)·BA, adds ``½·importance·Σ F (ΔW − ΔW*)²``, where ΔW* is the addition
    after the previous task and ``F ← γF + F_new`` after each task (Zheng et al. 2026). F_new is
    the diagonal Fisher information of the task's loss for the whole matrix W + ΔW, not for A and
    B, which interact: many pairs of them have the same product. A head that tasks share is held
    in the same way, as by `ewc-online`; in the paper each task has its own. The authors' code
    merges the addition into the weights after each task and starts a new one from 0; here, one
    addition is trained on, so that its rank stays `r`. See `LowRank` for the other settings.

    Attributes
    ----------
    importance
        λ. Meaningful only together with `mode`, and not portable between data sets.
    gamma
        γ: the factor on the Fisher information of earlier tasks, 0 to 1.
    mode, examples
        How, and from how many rows, F_new is computed: as in `EWC`.
    """

    name: ClassVar[str] = "ewc-lora"
    importance: Annotated[float, Field(gt=0.0, le=1e15)] = 1e5
    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    mode: Mode = "sampled"
    examples: Annotated[int, Field(ge=1)] | None = 2000

    def setup(self, context: Context) -> None:
        """Insert the adapter."""
        super().setup(context)
        self.fisher: dict[str, Tensor] = {}

    def before_stage(self, stage: Stage) -> None:
        """Keep the additions and the head as the previous task left them."""
        self._anchor: Snapshot = {
            name: value.detach().clone() for name, value in self._held(stage).items()
        }

    def penalty(self, stage: Stage) -> Tensor | None:
        """Return the weighted squared distance to the previous task's additions."""
        if not self._anchor:
            return None
        terms = [
            (self.fisher[name] * (value - self._anchor[name]).square()).sum()
            for name, value in self._held(stage).items()
        ]
        penalty = 0.5 * self.importance * torch.stack(terms).sum()
        if should_record(stage):
            stage.record("penalty", penalty)
        return penalty

    def after_stage(self, stage: Stage) -> None:
        """Add the Fisher information of the task just learned, unless it is the last one."""
        self._anchor = {}
        if stage.index == stage.stages - 1:
            return
        names = [*self._matrices(), *stage.model.head_parameter_names(stage.data.head)]
        new = task_fisher(stage, names, mode=self.mode, examples=self.examples)
        for total in self.fisher.values():
            total.mul_(self.gamma)
        for name, value in new.items():
            self.fisher[name] = self.fisher[name] + value if name in self.fisher else value

    def _held(self, stage: Stage) -> dict[str, Tensor]:
        """Return what earlier tasks have Fisher information for, by the names of `fisher`.

        This is the addition to each matrix, and the weights of the stage's head.
        """
        weights = dict(stage.model.named_parameters())
        held = {name: layer.get_delta_weight(ADAPTER) for name, layer in self._matrices().items()}
        held |= {n: weights[n] for n in stage.model.head_parameter_names(stage.data.head)}
        return {name: value for name, value in held.items() if name in self.fisher}

    def _matrices(self) -> dict[str, Any]:
        """Return the layers with an addition by the names of their frozen weights."""
        return {f"{path}.base_layer.weight": layer for path, layer in self._layers.items()}
