"""Vanilla at a low rate: the control for methods that lower the rate of some weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.stage import Stage


class LowRate(Method):
    """Fine-tune all weights at a fraction of the flat rate, in all stages.

    A control for `layerwise`: rates by layer must do better than one rate as low as their mean.
    Schedule, batches and steps are those of vanilla.

    Attributes
    ----------
    multiple
        Rate as a multiple of the protocol's. The default is the geometric mean of the ten
        multiples that Kenneweg et al. 2022 published (baseline ``bertcl-combined``).
    """

    name: ClassVar[str] = "low-rate"
    control: ClassVar[bool] = True
    multiple: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1519074799

    def acts_in(self, index: int) -> bool:
        """Return True unless the rate is the protocol's."""
        return self.multiple != 1.0

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group at the low rate."""
        return [{"params": stage.trainable(), "lr": self.multiple * stage.protocol.lr}]
