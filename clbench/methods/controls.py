"""The simple controls that other methods must beat: frozen, low rate and early stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from clbench.methods.base import Method, Phase, Vanilla

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from clbench.training.stage import Context, Stage


class Frozen(Method):
    """Train each task's head and keep the backbone as pretrained.

    A task with its own head cannot be forgotten; tasks that share a head can still overwrite
    it. A single dense layer needs a much higher rate, `lr`, than a whole network.
    """

    name: ClassVar[str] = "frozen"
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    control: ClassVar[bool] = True

    def setup(self, context: Context) -> None:
        """Freeze the backbone."""
        context.model.backbone.requires_grad_(False)


class LowRate(Vanilla):
    """Fine-tune all weights at a fraction of the flat rate, in all stages.

    A control for `layerwise`: rates by layer must do better than one rate as low as their mean.
    The default of `lr_multiple` is the geometric mean of the ten multiples that Kenneweg et al.
    2022 published (baseline ``bertcl-combined``).
    """

    name: ClassVar[str] = "low-rate"
    control: ClassVar[bool] = True
    lr_multiple: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1519074799


class EarlyStop(Method):
    """Fine-tune as vanilla, but stop every stage after the first at a share of its steps.

    A control for methods that forget less because they learn less. The schedule is that of the
    whole stage, as when a practitioner stops a run, so the weights are those that vanilla has at
    that step. The result records the steps, tokens and seconds actually trained.

    Attributes
    ----------
    share
        Share of a stage's steps to train, rounded to whole steps; at least one.
    """

    name: ClassVar[str] = "early-stop"
    control: ClassVar[bool] = True
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which is trained to its end."""
        return index > 0 and self.share < 1.0

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return one phase that ends early."""
        return [Phase(steps=max(1, round(self.share * _steps(stage))))]

    def schedule(self, stage: Stage, optimizer: Optimizer) -> LRScheduler:
        """Return the protocol's schedule over the whole stage."""
        from torch.optim.lr_scheduler import LambdaLR

        return LambdaLR(optimizer, partial(stage.protocol.rate_factor, steps=_steps(stage)))


def _steps(stage: Stage) -> int:
    """Return the steps of the whole stage."""
    return stage.protocol.stage_length(stage.name, len(stage.data.rows))[0]
