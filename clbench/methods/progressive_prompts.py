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
    needs_length: ClassVar[bool] = True
    needs_task_id: ClassVar[bool] = True
    length: Annotated[int, Field(ge=1)] = 10

    def setup(self, context: Context) -> None:
        """Freeze the backbone; add room for the prompts of all tasks to the model."""
        self.freeze(context, self.length * context.stages)
        width = context.model.backbone.get_input_embeddings().weight.shape[1]
        self._prompts = nn.ParameterList(
            torch.zeros(self.length, width, device=context.device) for _ in range(context.stages)
        ).requires_grad_(False)
        context.model.prompts = self._prompts
        self.learned: list[int] = []
        self._task = 0

    @torch.no_grad()
    def before_stage(self, stage: Stage) -> None:
        """Start the task's prompt."""
        self._task = stage.index
        ids = torch.from_numpy(stage.data.rows.ids.copy())
        draw = torch.randint(len(ids), (self.length,), generator=stage.rng("prompt"))
        words = stage.model.embed(ids[draw].long().to(stage.device))
        self._prompts[stage.index].copy_(words)
        for index, prompt in enumerate(self._prompts):
            prompt.requires_grad_(index == stage.index)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the task's prompt and head."""
        trained = [self._prompts[stage.index], *stage.trainable()]
        return [{"params": trained, "lr": stage.protocol.lr}]

    def prompts(self, model: Classifier, inputs: dict[str, Tensor]) -> Tensor:
        """Return the prompts up to the task's own, the latest first; equal for all rows."""
        earlier = [task for task in self.learned if task < self._task]
        tasks = [self._task, *reversed(earlier)]
        prompts = torch.cat([self._prompts[task] for task in tasks])
        return prompts.expand(*inputs["input_ids"].shape[:-1], *prompts.shape)

    def after_stage(self, stage: Stage) -> None:
        """Keep the prompt for later tasks."""
        self.learned.append(stage.index)
        self._task = stage.index

    @contextmanager
    def scoring(self, task: int) -> Iterator[None]:
        """Score a task with the prompts up to its own."""
        previous, self._task = self._task, task
        try:
            yield
        finally:
            self._task = previous
