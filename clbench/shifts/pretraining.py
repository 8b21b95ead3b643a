"""What is forgotten of the pretraining itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from clbench.shifts.base import PretrainingTexts, ScenarioTasks, Shift, ShiftContext


class Pretraining(Shift):
    """From the pretraining to one task, or to several one after another.

    D_o is the pretraining, which lies behind the model: it is scored and not trained. R has a
    row and a column for it, before those of the tasks, so that p_o is the masked-LM accuracy
    after all training and ``p_o_before`` that of the pretrained model. Chen et al. 2020
    (section 4.3, figure 2b) infer this forgetting from the distance to the pretrained weights;
    here both are recorded.

    The texts are the held-out part of the protocol's corpus: no method sees them. Of each text
    15 % of the tokens are masked, always the same ones, all by the mask, and predicted by the
    model's own language-model head, which is not trained along; a head that is tied to the
    embeddings follows them. Of a decoder every next token is predicted.

    Attributes
    ----------
    tasks
        Names of one or more tasks, in training order.
    texts
        Held-out texts, at most.
    text_length
        Tokens after which a text is cut.
    head_steps
        Steps of fitting a head for a checkpoint that comes without one, its encoder frozen.
    """

    name = "pretraining"

    tasks: Annotated[list[str], Field(min_length=1)]
    texts: Annotated[int, Field(ge=1)] = 500
    text_length: Annotated[int, Field(ge=4)] = 128
    head_steps: Annotated[int, Field(ge=1)] = 300

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """The tasks, in order, and the texts."""
        loaded = {name: context.task(name) for name in self.tasks}
        return ScenarioTasks(
            tuple(replace(loaded[name], head=loaded[name].name) for name in self.tasks),
            pretraining=PretrainingTexts(
                tuple(context.held_out_texts(self.texts)), self.text_length, self.head_steps
            ),
        )
