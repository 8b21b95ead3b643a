"""What a method is: small hooks around the engine, with typed settings.

The engine calls the hooks; it never asks which method it runs. In calling order:

========================  =======================================================
before a run              `check_protocol`
once for a cell           `setup`
once for a stage          `before_stage`, `training_data`, `phases`
once for a phase          `before_phase`, `parameter_groups`, `optimizer`, `schedule`
every step                `before_step`, `loss`, `penalty`, `edit_gradients`, `after_step`
once for a stage          `after_stage`
whenever a task is scored `scoring`
========================  =======================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from clbench.settings import Configured
from clbench.training.protocol import Phase

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from clbench.training.batches import Batch, TaskData
    from clbench.training.protocol import Protocol
    from clbench.training.stage import Context, Stage

__all__ = ["Method", "Phase"]


class Method(Configured):
    """A way to fine-tune through a scenario.

    Subclass it, annotate settings as class attributes, register it with
    ``@clbench.method("name")`` and override the hooks that are needed. Attributes that
    hooks assign are the method's state; `state` saves them between stages.

    Attributes
    ----------
    keeps_rows
        Declare True to read rows of earlier tasks. Results and tables mark such methods.
    """

    kind: ClassVar[str] = "method"
    keeps_rows: ClassVar[bool] = False

    def acts_in(self, index: int) -> bool:
        """Whether this method trains stage `index` otherwise than vanilla does.

        Where it says no, the engine trains the stage without calling any hook but
        `setup` and `after_stage`, and takes the stage from another method's cell if that
        has trained it. EWC, for one, has nothing to add in stage 0.
        """
        return True

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse a protocol that the settings do not fit, before anything is trained.

        Raises
        ------
        SettingsError
            With what does not fit, and what to do.
        """

    def setup(self, context: Context) -> None:
        """Called once, when the pretrained model is loaded: take anchors, wrap the model."""

    def before_stage(self, stage: Stage) -> None:
        """Called when a stage begins, before its data are asked for."""

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        """Called once a stage: what to train on; several portions are mixed by batch."""
        return [stage.data]

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Called once a stage: its phases in order, normally one."""
        return [Phase()]

    def before_phase(self, stage: Stage) -> None:
        """Called when a phase begins, before its optimizer is made."""

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Called once a phase: parameter groups for the optimizer, each with its ``lr``."""
        return [{"params": stage.trainable(), "lr": stage.protocol.lr}]

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> Optimizer:
        """Called once a phase, with what `parameter_groups` returned."""
        return stage.adam(groups)

    def schedule(self, stage: Stage, optimizer: Optimizer) -> LRScheduler | None:
        """Called once a phase: what changes the rates after each step."""
        return stage.schedule(optimizer)

    def before_step(self, stage: Stage) -> None:
        """Called before the forward pass of a step."""

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Called every step under autocast: the loss of a batch, a scalar."""
        return stage.loss(batch)

    def penalty(self, stage: Stage) -> Tensor | None:
        """Called every step, in float32: a scalar to add to the loss, or None."""
        return None

    def edit_gradients(self, stage: Stage) -> None:
        """Called after the backward pass, before clipping: change ``parameter.grad``."""

    def after_step(self, stage: Stage) -> None:
        """Called after the optimizer's step: look at or change the weights."""

    def after_stage(self, stage: Stage) -> None:
        """Called when a stage is trained, before it is scored: consolidate."""

    def scoring(self, task: int) -> AbstractContextManager[object]:
        """Called around the scoring of task number `task`: use other weights for it."""
        return nullcontext()

    def state(self) -> dict[str, Any]:
        """What must survive from one stage to the next, as tensors and plain values.

        The default is every attribute that hooks assigned, except names with a leading
        underscore. Nested dictionaries, lists, tensors and JSON values can be saved.
        """
        fields = self.settings_model().model_fields
        return {
            key: value
            for key, value in vars(self).items()
            if key not in fields and not key.startswith("_")
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take `state` back when an interrupted cell goes on."""
        for key, value in state.items():
            setattr(self, key, value)
