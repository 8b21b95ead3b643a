"""Progressive prompts: each task learns a prompt and reads those of earlier tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.prompts import Prompted

if TYPE_CHECKING:
    from clbench.models.classifier import Classifier
    from clbench.training.stage import Context, Stage


class ProgressivePrompts(Prompted):
    """Learn a prompt for each task, put before the frozen prompts of earlier tasks.

    Task k reads the rows as [P_k, P_(k-1), …, P_1, words] and trains P_k and its head only
    (Razdaibiedina et al. 2023, section 3). A task is scored with the prompts up to its own, so only
    a shared head can forget, and the method is told the task of each row. A prompt starts as
    embeddings of random tokens of its task's rows, special ones included; in the paper they are
    words of the whole vocabulary. The paper's networks that produce the prompts in training are
    left out. See `Prompted` for the place of the prompts in a row.

    Attributes
    ----------
    length
        Vectors in each prompt.
    """

    name: ClassVar[str] = "progressive-prompts"
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    needs_task_id: ClassVar[bool] = True
    length: Annotated[int, Field(ge=1)] = 10

    def longest(self, tasks: int) -> int:
        """Return the vectors of all tasks' prompts."""
        return self.length * tasks

    def setup(self, context: Context) -> None:
        """Freeze the backbone; add a prompt to the model. Those of finished tasks are kept."""
        self.freeze(context)
        width = context.model.backbone.get_input_embeddings().weight.shape[1]
        self._prompt = nn.Parameter(torch.zeros(self.length, width, device=context.device))
        context.model.prompts = nn.ParameterList([self._prompt])
        self.kept: dict[int, Tensor] = {}
        self._task = 0

    @torch.no_grad()
    def before_stage(self, stage: Stage) -> None:
        """Start the task's prompt."""
        self._task = stage.index
        ids = torch.from_numpy(stage.data.rows.ids.copy())
        draw = torch.randint(len(ids), (self.length,), generator=stage.rng("prompt"))
        self._prompt.copy_(stage.model.embed(ids[draw].long().to(stage.device)))

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the task's prompt and head."""
        return [{"params": [self._prompt, *stage.trainable()], "lr": stage.protocol.lr}]

    def prompts(self, model: Classifier, inputs: dict[str, Tensor]) -> Tensor:
        """Return the prompts up to the task's own, the latest first; equal for all rows."""
        own = self.kept.get(self._task, self._prompt)
        earlier = [prompt for task, prompt in sorted(self.kept.items()) if task < self._task]
        prompts = torch.cat([own, *reversed(earlier)])
        return prompts.expand(*inputs["input_ids"].shape[:-1], *prompts.shape)

    def after_stage(self, stage: Stage) -> None:
        """Keep the prompt for later tasks."""
        self.kept[stage.index] = self._prompt.detach().clone()
        self._task = stage.index

    @contextmanager
    def scoring(self, task: int) -> Iterator[None]:
        """Score a task with the prompts up to its own."""
        previous, self._task = self._task, task
        try:
            yield
        finally:
            self._task = previous
