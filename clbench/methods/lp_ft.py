"""LP-FT: fit the head on frozen features, then train everything (Kumar et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from clbench.methods.base import LearningRate, Method, Phase

if TYPE_CHECKING:
    from clbench.training.stage import Stage


class LpFt(Method):
    """Fit the stage's head on frozen features first, then train all weights.

    A random head sends large gradients into the features and distorts them, which linear probing
    then fine-tuning avoids (Kumar et al. 2022, sections 3.4 and 4). Both phases together have as
    many steps as the protocol gives the stage; each has an optimizer and a schedule of its own. The
    paper probes until the head has converged and chooses the probe by its validation accuracy; here
    a share of the steps stands for that. While the backbone is frozen its dropout is off. A head
    that an earlier task trained is probed from the weights that it has.

    Attributes
    ----------
    probe
        Share of the stage's steps that train the head alone, rounded to whole steps; at least one
        step, and at least one is left for the rest. A stage of one step trains everything.
    probe_lr
        Rate of these steps. The others have the flat rate.
    """

    name: ClassVar[str] = "lp-ft"
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    probe: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    probe_lr: LearningRate = 1e-3

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return two phases, probing and fine-tuning, with the steps of the stage between them."""
        steps, _ = stage.protocol.stage_length(stage.name, len(stage.data.rows))
        probing = min(max(1, round(self.probe * steps)), steps - 1)
        return [Phase("probe", steps=probing), Phase("fine-tune", steps=steps - probing)]

    def before_phase(self, stage: Stage) -> None:
        """Freeze the backbone for probing, and unfreeze what that froze afterwards."""
        if stage.phase == 0:
            backbone = stage.model.backbone_parameters().values()
            self._frozen = [weight for weight in backbone if weight.requires_grad]
        for weight in self._frozen:
            weight.requires_grad_(stage.phase > 0)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the head at the rate of probing, or all weights at the flat rate."""
        lr = self.probe_lr if stage.phase == 0 else stage.protocol.lr
        return [{"params": stage.trainable(), "lr": lr}]
