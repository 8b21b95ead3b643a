"""Shifts between tasks: dataset shift, and the shift from the pretraining to tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from clbench.shifts.base import ColumnSpec, ScenarioTasks, Shift, ShiftContext


class DatasetShift(Shift):
    """Different tasks one after another, each with its own head.

    A task that is named twice keeps its head. For the pairs of the paper see Kenneweg et al. 2022,
    section 4.1.

    Attributes
    ----------
    tasks
        Names of two or more tasks.
    """

    name = "dataset"
    short_name: ClassVar[str | None] = ""

    tasks: Annotated[list[str], Field(min_length=2)]

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the tasks in order."""
        loaded = {name: context.task(name) for name in self.tasks}
        return ScenarioTasks(
            tuple(replace(loaded[name], head=loaded[name].name) for name in self.tasks)
        )


class Pretraining(DatasetShift):
    """From the pretraining to one task, or to several one after another.

    D_o is the pretraining, which is scored but not trained on. R has a row and a column for it
    before those of the tasks, so that p_o is the masked-LM accuracy after all training and
    ``p_o_before`` that of the pretrained model. Chen et al. 2020 (section 4.3, figure 2b) infer
    this forgetting from the distance to the pretrained weights; here both are recorded.

    The texts are the held-out part of the protocol's corpus, which no method sees. In each text a
    fixed 15 % of the tokens are masked and predicted by the model's own language-model head. That
    head is not trained; one that is tied to the embeddings follows them. A decoder predicts every
    next token.

    Attributes
    ----------
    tasks
        Names of one or more tasks, in training order.
    texts
        Maximum number of held-out texts.
    text_length
        Maximum tokens of a text.
    head_steps
        Training steps for the head of a checkpoint without one, with the encoder frozen.
    """

    name = "pretraining"
    short_name = None

    tasks: Annotated[list[str], Field(min_length=1)]
    texts: Annotated[int, Field(ge=1)] = 500
    text_length: Annotated[int, Field(ge=4)] = 128
    head_steps: Annotated[int, Field(ge=1)] = 300

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the tasks in order, and the column of the pretraining."""
        texts = context.held_out_texts(self.texts)
        return replace(
            super().build(context),
            numbers={"pretraining_texts": len(texts)},
            columns=(pretraining_column(texts, self.text_length, self.head_steps),),
        )


def pretraining_column(
    texts: Sequence[str], text_length: int = 128, head_steps: int = 300
) -> ColumnSpec:
    """Return the column of R that scores what a model retains of its pretraining.

    No model may be trained on `texts`; the other parameters are settings of `Pretraining`.
    """
    return ColumnSpec(
        "pretraining",
        "accuracy",
        "pretraining",
        {"texts": texts, "text_length": text_length, "head_steps": head_steps},
    )
