"""Train the heads only, on the frozen pretrained backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.stage import Context


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
