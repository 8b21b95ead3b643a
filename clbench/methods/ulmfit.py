"""ULMFiT's fine-tuning: rates by layer, gradual unfreezing, slanted triangular rates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from clbench.methods.base import Method

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from clbench.training.stage import Stage


class Ulmfit(Method):
    """Train from the head downwards: lower layers join later and at lower rates.

    The three parts of Howard & Ruder 2018: discriminative rates (section 3.2: each layer's
    rate is that of the layer above divided by 2.6), slanted triangular rates (equation 3)
    and gradual unfreezing (section 3.3). Groups are the head, each layer from the top down
    and the embeddings; weights that have not joined yet get neither gradient nor update. The
    flat rate is the largest rate of the head; the paper's 0.01 is for LSTMs.

    Attributes
    ----------
    decay
        Divisor of the rate from one group to the next lower one.
    cut_frac
        Share of the steps in which the rates rise.
    ratio
        Largest rate divided by the lowest.
    unfreezing
        When groups join. ``epochs``: one per epoch, as in the paper; in a stage of fewer
        epochs than groups the lowest never join. ``scaled``: one after each equal part of
        the stage, which is the paper's schedule if a stage has as many epochs as
        groups. ``none``: all at once. The curve ``trained_groups`` shows it.
    """

    name: ClassVar[str] = "ulmfit"
    decay: Annotated[float, Field(ge=1.0, le=100.0)] = 2.6
    cut_frac: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    ratio: Annotated[float, Field(ge=1.0, le=1e6)] = 32.0
    unfreezing: Literal["scaled", "epochs", "none"] = "scaled"

    _groups: list[list[nn.Parameter]] = []

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return groups from the head down, each at its rate; all but the head are frozen."""
        self._groups = depth_groups(stage)
        self._unfreeze(1 if self.unfreezing != "none" else len(self._groups))
        top = stage.protocol.lr
        return [
            {"params": group, "lr": top / self.decay**depth}
            for depth, group in enumerate(self._groups)
        ]

    def schedule(self, stage: Stage, optimizer: Optimizer) -> LambdaLR:
        """Return one slanted triangle over the phase, the same for all groups."""
        factor = partial(
            slanted_triangle, steps=stage.steps, cut_frac=self.cut_frac, ratio=self.ratio
        )
        return LambdaLR(optimizer, factor)

    def before_step(self, stage: Stage) -> None:
        """Unfreeze the groups that are due."""
        count = len(self._groups)
        if self.unfreezing == "none":
            due = count
        elif self.unfreezing == "epochs":
            due = min(count, 1 + stage.step // stage.epoch_steps)
        else:
            due = sum(stage.step >= depth * stage.steps // count for depth in range(count))
        if due > self._trained_groups:
            self._unfreeze(due)
            stage.model.train()  # the engine turns dropout off in a frozen backbone
        elif stage.step > 0:
            return
        stage.record("trained_groups", float(due))

    def after_stage(self, stage: Stage) -> None:
        """Unfreeze all groups."""
        self._unfreeze(len(self._groups))

    def _unfreeze(self, count: int) -> None:
        for depth, group in enumerate(self._groups):
            for parameter in group:
                parameter.requires_grad_(depth < count)
        self._trained_groups = count


def depth_groups(stage: Stage) -> list[list[nn.Parameter]]:
    """Return the weights that the stage trains, grouped by layer from the head down."""
    trained = {id(parameter) for parameter in stage.trainable()}
    weights = dict(stage.model.named_parameters())
    groups = [
        [weights[name] for name in group.parameters if id(weights[name]) in trained]
        for group in reversed(stage.model.layer_groups())
    ]
    return [group for group in groups if group]


def slanted_triangle(step: int, *, steps: int, cut_frac: float, ratio: float) -> float:
    """Return the factor on the rate: a short rise, then a long fall.

    Howard & Ruder 2018, equation 3, for step number `step`, from 0, of `steps`. At least one
    step rises. If ``steps·cut_frac`` is not a whole number, the paper's line falls below the
    lowest rate, even below 0; here it reaches the lowest rate after the last step.
    """
    cut = max(1, int(steps * cut_frac))
    rising = step < cut
    share = step / cut if rising else max(0.0, 1.0 - (step - cut) / max(1, steps - cut))
    return (1.0 + share * (ratio - 1.0)) / ratio
