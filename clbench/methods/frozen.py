"""Train the heads only, on the frozen pretrained backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from clbench.methods.base import LearningRate, Method

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage


class Frozen(Method):
    """Train each task's head and keep the backbone as pretrained.

    A task with its own head cannot be forgotten; tasks that share a head can still overwrite
    it.

    Attributes
    ----------
    lr
        Learning rate of the heads; None takes the protocol's. A single dense layer needs a
        much higher rate than a whole network.
    """

    name: ClassVar[str] = "frozen"
    control: ClassVar[bool] = True
    lr: LearningRate | None = None

    def setup(self, context: Context) -> None:
        """Freeze the backbone."""
        context.model.backbone.requires_grad_(False)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the head."""
        return [{"params": stage.trainable(), "lr": self.lr or stage.protocol.lr}]
