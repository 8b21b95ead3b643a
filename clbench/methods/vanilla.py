"""Plain fine-tuning: every weight at one learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from clbench.methods.base import LearningRate, Method

if TYPE_CHECKING:
    from clbench.training.stage import Stage


class Vanilla(Method):
    """Fine-tune all weights at one rate; the reference for other methods.

    Attributes
    ----------
    lr
        The flat rate; None takes the protocol's.
    """

    name: ClassVar[str] = "vanilla"
    lr: LearningRate | None = None

    def acts_in(self, index: int) -> bool:
        """Return True only with a rate other than the protocol's."""
        return self.lr is not None

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group at the flat rate."""
        return [{"params": stage.trainable(), "lr": self.lr or stage.protocol.lr}]
