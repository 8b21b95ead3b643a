"""The interface of a method.

A method is a set of hooks around the engine, with typed settings. The engine calls the hooks
and never asks which method it runs. In calling order:

========================  =======================================================
before a run              `check_protocol`, `check_tasks`
once per cell             `setup`
once per stage            `before_stage`, `training_data`, `phases`
once per phase            `before_phase`, `parameter_groups`, `optimizer`, `schedule`
every step                `before_step`, `loss`, `penalty`, `edit_gradients`, `after_step`
once per stage            `after_stage`
whenever a task is scored `scoring`
========================  =======================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from clbench.core.registry import Configured

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LRScheduler

    from clbench.tasks.task import Task
    from clbench.training.batches import Batch, TaskData
    from clbench.training.context import Context
    from clbench.training.protocol import Protocol
    from clbench.training.stage import Stage

LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]


@dataclass(frozen=True)
class Phase:
    """A part of a stage with its own optimizer and schedule."""

    name: str = "train"
    steps: int | None = None  # None: the stage's length by the protocol


class Method(Configured):
    """A way to fine-tune through a scenario.

    Subclass it, annotate settings as class attributes, register it with
    ``@clbench.method("name")`` and override the hooks you need. Attributes that hooks
    assign are the method's state; `state` saves them between stages.

    Attributes
    ----------
    keeps_rows
        Set to True to read rows of earlier tasks. Results and tables mark such methods.
    needs_task_id
        Set to True if `scoring` gives each task weights of its own: the method must then be told
        the task of each row, even where tasks share a head. Results and tables mark it too.
    holds_head
        Set to True if the method penalises, freezes, filters, projects, merges or computes the
        weights of a head that tasks share; else they follow the loss alone. Results show it.
    needs_length
        Set to True if the method trains a stage differently when more tasks follow, as one that
        divides the weights among all tasks. Other methods' stages serve longer sequences, too.
    needs_outputs
        Set to True if outputs of a growing head that no task uses yet change how the method trains
        a stage: a head that grows further then starts anew.
    head_kinds
        Which values of the protocol's ``head`` the method can train. With a language model, labels
        are the tokens of answers: see `Batch.predictions`.
    needs_decoder
        Set to True if, with a language model, the method needs one that predicts every next token.
    writes_answers
        Set to True if the model writes answers to the rows' prompts in training. A Trainer cannot
        tell prompts from answers.
    runs_in_trainer
        Set to True if the method needs only the model, the batch and the gradient, so that
        `clbench.hf.protect` can run it in a Trainer.
    replaces_loss
        Set to True if `loss` never asks for the stage's own, only for logits. In a Trainer, its own
        loss is then not computed, and rows may be packed.
    takes_fisher
        Set to True if in a Trainer it starts from Fisher information, in the state ``fisher`` and
        ``anchor``.
    reads_corpus
        Set to True if it reads the suite's `corpus`; `clbench.hf.protect` refuses one otherwise.
    control
        Set to True for a control: a simple way to forget less. The report says which methods do
        not beat every control of a run that keeps no rows.
    only_consolidates
        Set to True if every stage is trained as by vanilla and only `after_stage` differs, after
        stages for which `acts_in` returns True. Of the hooks of training, only `before_stage` is
        then called, which must not change the model. A stage that starts from vanilla's weights is
        trained once for vanilla and all such methods.
    check_settings
        Settings that `clbench check` replaces, where they alone decide the memory or the time.
    lr, lr_multiple
        Settings of every method. The flat rate of its stages is ``lr · lr_multiple``, where an
        `lr` of None stands for the protocol's. Hooks read it as ``stage.protocol.lr``.
    """

    kind: ClassVar[str] = "method"
    keeps_rows: ClassVar[bool] = False
    needs_task_id: ClassVar[bool] = False
    holds_head: ClassVar[bool] = False
    only_consolidates: ClassVar[bool] = False
    needs_length: ClassVar[bool] = False
    needs_outputs: ClassVar[bool] = False
    head_kinds: ClassVar[tuple[str, ...]] = ("classification", "language-model")
    needs_decoder: ClassVar[bool] = False
    writes_answers: ClassVar[bool] = False
    runs_in_trainer: ClassVar[bool] = False
    replaces_loss: ClassVar[bool] = False
    takes_fisher: ClassVar[bool] = False
    reads_corpus: ClassVar[bool] = False
    control: ClassVar[bool] = False
    check_settings: ClassVar[Mapping[str, Any]] = {}
    lr: LearningRate | None = None
    lr_multiple: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0

    def acts_in(self, index: int) -> bool:
        """Whether this method trains stage `index` differently from vanilla at the same rate.

        If not, the engine calls only `setup` and `after_stage` for that stage, and reuses
        the stage if another method's cell has trained it. EWC, for one, adds nothing in
        stage 0.
        """
        return True

    def check_protocol(self, protocol: Protocol) -> None:
        """Check before training that the settings fit the protocol.

        Raises
        ------
        SettingsError
            If they do not fit; the message says what to change.
        """

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Check before training that the method can learn the tasks of a scenario, in order.

        Raises
        ------
        SettingsError
            If it cannot; the message says what to change.
        """

    def setup(self, context: Context) -> None:
        """Called once, after the pretrained model is loaded: take anchors, wrap the model."""

    def before_stage(self, stage: Stage) -> None:
        """Called when a stage begins, before `training_data`."""

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        """Called once per stage: return the rows to train on; tasks are mixed batch by batch.

        Each task has batches of its own size, and the stage as many epochs or steps as its own.
        """
        return [stage.data]

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Called once per stage: return its phases in order, normally one."""
        return [Phase()]

    def before_phase(self, stage: Stage) -> None:
        """Called when a phase begins, before its optimizer is created."""

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Called once per phase: return the optimizer's parameter groups, each with its ``lr``."""
        return [{"params": stage.trainable(), "lr": stage.protocol.lr}]

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Called once per phase with those groups: return the optimizer."""
        return stage.adam(groups)

    def schedule(self, stage: Stage, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        """Called once per phase: return the scheduler to step after each training step."""
        return stage.schedule(optimizer)

    def before_step(self, stage: Stage) -> None:
        """Called before the forward pass of a step."""

    def loss(self, stage: Stage, batch: Batch) -> torch.Tensor:
        """Called every step: return the loss of a batch, a scalar."""
        return stage.loss(batch)

    def penalty(self, stage: Stage) -> torch.Tensor | None:
        """Called every step, in float32: return a scalar to add to the loss, or None."""
        return None

    def edit_gradients(self, stage: Stage) -> None:
        """Called after the backward pass, before clipping: change ``parameter.grad``."""

    def after_step(self, stage: Stage) -> None:
        """Called after the optimizer's step: read or change the weights."""

    def after_stage(self, stage: Stage) -> None:
        """Called when a stage is trained, before it is scored: consolidate."""

    def scoring(self, task: int) -> AbstractContextManager[object]:
        """Called to score task number `task`: return a context that sets its weights."""
        return nullcontext()

    def state(self) -> dict[str, Any]:
        """Return what must survive an interruption, as tensors and plain values.

        It is taken when a stage is trained, before `after_stage`, which a resumed cell calls
        without `before_stage`.

        By default every attribute that hooks assigned, except names with a leading
        underscore. Nested dictionaries, lists, tensors and JSON values can be saved.
        """
        fields = self.settings_model().model_fields
        return {
            key: value
            for key, value in vars(self).items()
            if key not in fields and not key.startswith("_")
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore `state` when an interrupted cell resumes."""
        for key, value in state.items():
            setattr(self, key, value)
