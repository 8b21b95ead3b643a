"""iCaRL: exemplars by herding, distillation, and nearest-mean-of-exemplars classification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.methods.base import Method
from clbench.methods.head_first import classes_of
from clbench.methods.prototypes import NEVER

if TYPE_CHECKING:
    from clbench.tasks.task import IntArray, Task
    from clbench.training.batches import Batch, TaskData
    from clbench.training.stage import Context, Stage


class ICaRL(Method):
    """Train on new rows and exemplars, distil old outputs, and answer with the nearest mean.

    Rebuffi et al. 2017. A stage trains on its rows and on all exemplars of earlier classes
    (Algorithm 3). Every output is a sigmoid. An output of a class of the stage learns the
    labels; an output of an earlier class learns the value it had for the row before the stage.
    The loss is their binary cross-entropy, summed over outputs. Afterwards each class gets an
    equal part of the memory, filled by herding: the next exemplar is the row that brings the
    mean of the exemplars nearest to that of the class, on features of length 1 (Algorithm 4).
    The first exemplars are the best, so those of earlier classes are cut off at the end
    (Algorithm 5). A row is scored by the mean of the exemplars nearest to its features
    (Algorithm 1), which is the largest product with the means of length 1: these replace the
    head's rows while it is scored.

    A batch has rows of one task here, and a small batch of exemplars weighs as much as a full
    one of new rows. Between the start and the end of a stage, on curves, the head itself is
    scored. The outputs of another task's own head are distilled too; its exemplars do not count
    as negative rows for the head of the stage. A class that comes again in a later task learns
    the labels again, and its exemplars are divided among its tasks.

    Attributes
    ----------
    memory
        K: number of rows kept over all classes, the same for each; at least one for each.
    """

    name: ClassVar[str] = "icarl"
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    keeps_rows: ClassVar[bool] = True
    memory: Annotated[int, Field(ge=1)] = 200

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Raise a SettingsError if a task has no classes, or they are more than the memory."""
        for task in tasks:
            if task.outputs == 1:
                raise SettingsError(
                    f"task {task.name!r} is regression or multiple choice, without the class means "
                    "that method 'icarl' needs. Use replay or der++."
                )
        classes = sum({task.head: task.outputs for task in tasks}.values())
        if classes > self.memory:
            raise SettingsError(
                f"memory = {self.memory} is too small: each of {classes} classes needs an exemplar."
            )

    def setup(self, context: Context) -> None:
        """Start without exemplars."""
        self._classifier = context.model
        self.exemplars: dict[int, dict[int, IntArray]] = {}  # by task and class
        self.learned: dict[str, Tensor] = {}
        self.means: dict[str, Tensor] = {}

    def before_stage(self, stage: Stage) -> None:
        """Record the earlier classes' outputs for the rows of the stage and the exemplars."""
        self.means = {}
        self._old = dict(self.learned)
        if (head := stage.data.head) in self._old:
            self._old[head] = self._old[head] & ~classes_of(stage)
        self._targets = {}
        for data in self.training_data(stage):
            for head, outputs in stage.outputs_of(self._old, data).items():
                self._targets[data.task, head] = outputs.sigmoid()

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        """Return the stage's rows and the exemplars of each earlier task."""
        return [stage.data, *self._kept(stage)]

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the cross-entropy of labels and of earlier outputs, from one backbone pass."""
        model = stage.model
        rows = torch.from_numpy(batch.positions).to(stage.device, non_blocking=True)
        with stage.precision.autocast():
            pooled = model.dropout(model.features(batch.inputs))
            heads = sorted({batch.head, *self._old})
            outputs = {head: model.apply_head(pooled, head).float() for head in heads}
        terms = []
        for head, logits in outputs.items():
            width = logits.shape[1]
            targets, counted = torch.zeros_like(logits), torch.zeros_like(logits)
            if head == batch.head:
                targets = nn.functional.one_hot(batch.labels, width).float()
                counted = torch.ones_like(logits)
            if head in self._old:
                old = self._old[head][:width]
                targets = torch.where(old, self._targets[batch.task, head][rows], targets)
                counted = counted.masked_fill(old, 1.0)
            terms.append(
                nn.functional.binary_cross_entropy_with_logits(
                    logits, targets, weight=counted, reduction="sum"
                )
            )
        return torch.stack(terms).sum() / len(batch)

    def after_stage(self, stage: Stage) -> None:
        """Choose exemplars of the stage's classes, cut the others off, and take all means."""
        self._targets = {}
        labels, own, head = stage.data.rows.labels, classes_of(stage), stage.data.head
        classes = own.nonzero().flatten().tolist()
        self.exemplars[stage.index] = new = {k: np.flatnonzero(labels == k) for k in classes}
        room = self._room([task.head for task in stage.tasks])
        features = normalised_features(stage, stage.data)
        for label, positions in new.items():
            new[label] = positions[herding(features[positions], room[stage.index, label])]
        for task, kept in self.exemplars.items():
            kept.update({label: rows[: room[task, label]] for label, rows in kept.items()})
        self.learned[head] = self.learned.get(head, torch.zeros_like(own)) | own
        self._take_means(stage)

    @contextmanager
    def scoring(self, task: int) -> Iterator[None]:
        """Replace the rows of each head by the means of the exemplars, once they are taken."""
        before = []
        for head, means in self.means.items():
            weight, bias = (p.data for p in self._classifier.head(head).parameters())
            before += [(weight, weight.clone()), (bias, bias.clone())]
            weight.copy_(means)
            bias.zero_().masked_fill_(~self.learned[head], NEVER)
        try:
            yield
        finally:
            for parameter, value in before:
                parameter.copy_(value)

    def _room(self, heads: Sequence[str]) -> dict[tuple[int, int], int]:
        """Return the number of exemplars of each class of each task, for the tasks' `heads`.

        Each class has the same share of the memory, and its tasks equal parts of it.
        """
        tasks: dict[tuple[str, int], list[int]] = {}
        for task, kept in self.exemplars.items():
            for label in kept:
                tasks.setdefault((heads[task], label), []).append(task)
        share = self.memory // len(tasks)
        return {
            (task, label): len(part)
            for (_, label), some in tasks.items()
            for task, part in zip(some, np.array_split(np.arange(share), len(some)), strict=True)
        }

    def _kept(self, stage: Stage) -> list[TaskData]:
        """Return the exemplars of each task that has some."""
        kept = []
        for task, by_class in self.exemplars.items():
            data, positions = stage.earlier(task), np.concatenate(list(by_class.values()))
            if len(positions):
                kept.append(replace(data, rows=data.rows.take(positions)))
        return kept

    def _take_means(self, stage: Stage) -> None:
        """Take the mean of the exemplars of each class, of length 1; 0 for other outputs."""
        for head, learned in self.learned.items():
            self.means[head] = torch.zeros((len(learned), stage.model.config.hidden_size))
        for data in self._kept(stage):
            labels = torch.from_numpy(np.array(data.rows.labels))
            self.means[data.head].index_add_(0, labels, normalised_features(stage, data))
        for head, sums in self.means.items():
            self.means[head] = nn.functional.normalize(sums, dim=1).to(stage.device)


def normalised_features(stage: Stage, data: TaskData) -> Tensor:
    """Return the pooled features of all rows, of length 1, without dropout; (n, h) on the CPU."""
    return nn.functional.normalize(torch.from_numpy(stage.features(data)), dim=1)


def herding(features: Tensor, count: int) -> IntArray:
    """Return the positions of the best `count` exemplars of a class, best first.

    `features` are those of all its rows, of length 1, shape (n, h). For these, the row that brings
    the mean of k exemplars nearest to the class mean μ is the one with the largest product with
    kμ minus the sum of those chosen before.
    """
    rows = features.double()
    mean = rows.mean(0)
    direction, chosen = mean.clone(), []
    free = torch.ones(len(rows), dtype=torch.bool)
    for _ in range(min(count, len(rows))):
        best = int((rows @ direction).masked_fill(~free, -torch.inf).argmax())
        free[best] = False
        chosen.append(best)
        direction += mean - rows[best]
    return np.array(chosen, dtype=np.int64)
