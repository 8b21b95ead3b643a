"""Heads only, on the pretrained features: cannot forget, and learns little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage


class Frozen(Method):
    """Train the head of each task and leave the backbone as it was pretrained.

    With one head a task nothing can be forgotten; tasks that share a head still can
    overwrite it.

    Attributes
    ----------
    lr
        Rate of the heads; None takes the protocol's. A dense layer alone bears, and
        needs, a far higher rate than a whole network.
    """

    name: ClassVar[str] = "frozen"
    lr: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    def setup(self, context: Context) -> None:
        """Take the backbone out of the gradient."""
        context.model.backbone.requires_grad_(False)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """The head at its rate."""
        return [{"params": stage.trainable(), "lr": self.lr or stage.protocol.lr}]
