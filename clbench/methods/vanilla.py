"""Plain fine-tuning: every weight, one flat rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.stage import Stage


class Vanilla(Method):
    """Fine-tune everything at one rate; what other methods are compared with.

    Attributes
    ----------
    lr
        The flat rate; None takes the protocol's.
    """

    name: ClassVar[str] = "vanilla"
    lr: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    def acts_in(self, index: int) -> bool:
        """Only a rate of its own sets a stage apart from the protocol's."""
        return self.lr is not None

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """One group at the flat rate."""
        return [{"params": stage.trainable(), "lr": self.lr or stage.protocol.lr}]
