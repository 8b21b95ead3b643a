"""Rows of earlier tasks in a small memory: which are kept, and batches drawn from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.tasks.task import IntArray
    from clbench.training.batches import Batch, TaskData
    from clbench.training.stage import Context, Stage

POINTS = 30
"""Points of a curve in a stage, at most; each waits for the device."""
Kept = dict[str, Any]


@dataclass(frozen=True)
class Recalled:
    """Kept rows of one task as a batch.

    Attributes
    ----------
    batch
        The rows.
    places
        Shape (b,): where the rows stand among the kept ones of their task.
    share
        Their part of all rows that were drawn; the parts of a draw sum to 1.
    """

    batch: Batch
    places: IntArray
    share: float


class Rehearsal(Method):
    """Base of methods that keep some rows of each task and see them again.

    Every row gets a random key when its stage ends, and the rows with the smallest keys stay.
    The memory is filled when a stage ends, as task boundaries are known here: the first stage
    is vanilla's, and no row is kept that the stage did not train on.

    Attributes
    ----------
    memory
        Rows kept in all, over all tasks.
    choice
        ``task``: the same number of each task (the ring buffer of Chaudhry et al. 2019b,
        section 4, by task instead of by class). ``reservoir``: the smallest keys of all rows
        seen so far, which is a uniform sample of them (reservoir sampling, as in Riemer et
        al. 2019, Algorithm 3); large tasks then take most of the memory.
    recall
        Rows drawn from the memory at each step; None draws as many as a batch has by the
        protocol (Chaudhry et al. 2019b, Algorithm 1).
    """

    keeps_rows: ClassVar[bool] = True
    memory: Annotated[int, Field(ge=1)] = 200
    choice: Literal["task", "reservoir"] = "task"
    recall: Annotated[int, Field(ge=1)] | None = None

    def acts_in(self, index: int) -> bool:
        """In the first stage there is nothing to recall."""
        return index > 0

    def setup(self, context: Context) -> None:
        """An empty memory."""
        self.kept: dict[int, Kept] = {}

    def train_old_heads(self, stage: Stage) -> None:
        """Let kept rows train the heads of their tasks; for `before_phase`."""
        stage.heads |= {stage.earlier(task).head for task in self.kept}

    def after_stage(self, stage: Stage) -> None:
        """Take rows of the stage's task in, and let others go."""
        keys = torch.rand(
            len(stage.data.rows), generator=stage.rng("memory"), dtype=torch.float64
        ).numpy()
        best = np.argsort(keys, kind="stable")[: self.memory]
        self.kept[stage.index] = {"positions": best, "keys": keys[best]}
        for task, count in self.quotas().items():
            entry = self.kept[task]
            self.kept[task] = {name: values[:count] for name, values in entry.items()}

    def quotas(self) -> dict[int, int]:
        """How many rows of each task have a place in the memory."""
        tasks = sorted(self.kept)
        if self.choice == "task":
            each, more = divmod(self.memory, len(tasks))
            return {task: each + (number < more) for number, task in enumerate(tasks)}
        keys = np.concatenate([self.kept[task]["keys"] for task in tasks])
        owners = np.repeat(tasks, [len(self.kept[task]["keys"]) for task in tasks])
        best = owners[np.argsort(keys, kind="stable")[: self.memory]]
        return {task: int((best == task).sum()) for task in tasks}

    def draw(self, stage: Stage, name: str) -> list[Recalled]:
        """Random kept rows, without repetition, as one batch for each of their tasks.

        Parameters
        ----------
        stage
            The running one.
        name
            Of the random stream to draw from.
        """
        tasks = [task for task in sorted(self.kept) if len(self.kept[task]["positions"])]
        sizes = np.array([len(self.kept[task]["positions"]) for task in tasks])
        total = int(sizes.sum())
        count = min(self.recall or stage.protocol.batch_of(stage.name), total)
        drawn = torch.randperm(total, generator=stage.rng(name))[:count].numpy()
        starts = np.concatenate([[0], np.cumsum(sizes)])
        recalled = []
        for number, task in enumerate(tasks):
            inside = (drawn >= starts[number]) & (drawn < starts[number + 1])
            places = drawn[inside] - starts[number]
            if len(places):
                positions = self.kept[task]["positions"][places]
                batch = stage.earlier(task).batch(positions, stage.device)
                recalled.append(Recalled(batch, places, len(places) / count))
        return recalled

    def recalled_loss(self, stage: Stage, recalled: list[Recalled]) -> Tensor:
        """Mean loss of the rows that were drawn; a scalar."""
        terms = [stage.loss(part.batch) * part.share for part in recalled]
        return torch.stack(terms).sum()

    def kept_rows(self, stage: Stage, task: int) -> TaskData:
        """The kept rows of a task, in the order of their places."""
        data = stage.earlier(task)
        return replace(data, rows=data.rows.take(self.kept[task]["positions"]))


def should_record(stage: Stage) -> bool:
    """Whether this step is one of the few dozen of a stage to record something at."""
    every = max(1, math.ceil(stage.total_steps / POINTS))
    return (stage.done_before + stage.step) % every == 0
