"""Experience replay, and the episodic memory that other rehearsal methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.base import Method, should_record

if TYPE_CHECKING:
    from clbench.tasks.task import IntArray
    from clbench.training.batches import Batch
    from clbench.training.stage import Context, Stage


@dataclass(frozen=True)
class MemoryBatch:
    """Rows of one task drawn from the memory.

    Attributes
    ----------
    batch
        The rows.
    indices
        Their positions among the task's rows in the memory, shape (b,).
    share
        Their share of all rows drawn; the shares of a draw sum to 1.
    """

    batch: Batch
    indices: IntArray
    share: float


class Rehearsal(Method):
    """Base of methods that keep some rows of each task and replay them.

    When a stage ends, each of its rows gets a random key, and the rows with the smallest keys
    stay. The memory is filled at the end of a stage because task boundaries are known here:
    the first stage equals vanilla's, and only rows that were trained on are kept.

    Attributes
    ----------
    memory
        Number of rows kept over all tasks.
    choice
        ``task``: the same number of each task (the ring buffer of Chaudhry et al. 2019b,
        section 4, by task instead of by class). ``reservoir``: the smallest keys of all rows
        seen so far, a uniform sample of them (reservoir sampling, as in Riemer et
        al. 2019, Algorithm 3); large tasks then take most of the memory.
    recall
        Rows drawn from the memory at each step; None draws as many as the protocol's batch
        has (Chaudhry et al. 2019b, Algorithm 1).
    """

    keeps_rows: ClassVar[bool] = True
    memory: Annotated[int, Field(ge=1)] = 200
    choice: Literal["task", "reservoir"] = "task"
    recall: Annotated[int, Field(ge=1)] | None = None

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, in which the memory is empty."""
        return index > 0

    def setup(self, context: Context) -> None:
        """Start with an empty memory."""
        self.kept: dict[int, dict[str, Any]] = {}

    def before_phase(self, stage: Stage) -> None:
        """Let rows of the memory train the heads of their tasks."""
        stage.heads |= {stage.earlier(task).head for task in self.kept}

    def after_stage(self, stage: Stage) -> None:
        """Store rows of the stage's task; drop rows of other tasks to make room."""
        count = len(stage.data.rows)
        keys = torch.rand(count, generator=stage.rng("memory"), dtype=torch.float64).numpy()
        best = np.argsort(keys, kind="stable")[: self.memory]
        self.kept[stage.index] = {"positions": best, "keys": keys[best]}
        for task, quota in self.quotas().items():
            self.kept[task] = {name: values[:quota] for name, values in self.kept[task].items()}

    def quotas(self) -> dict[int, int]:
        """Return how many rows of each task the memory holds."""
        tasks = sorted(self.kept)
        if self.choice == "task":
            share, rest = divmod(self.memory, len(tasks))
            return {task: share + (number < rest) for number, task in enumerate(tasks)}
        keys = np.concatenate([self.kept[task]["keys"] for task in tasks])
        owners = np.repeat(tasks, [len(self.kept[task]["keys"]) for task in tasks])
        best = owners[np.argsort(keys, kind="stable")[: self.memory]]
        return {task: int((best == task).sum()) for task in tasks}

    def draw(self, stage: Stage, name: str) -> list[MemoryBatch]:
        """Draw random rows of the memory without replacement, one batch per task.

        `name` names the random stream.
        """
        tasks = [task for task in sorted(self.kept) if len(self.kept[task]["positions"])]
        sizes = np.array([len(self.kept[task]["positions"]) for task in tasks])
        total = int(sizes.sum())
        count = min(self.recall or stage.protocol.batch_of(stage.name), total)
        draw = torch.randperm(total, generator=stage.rng(name))[:count].numpy()
        batches = []
        for task, size, start in zip(tasks, sizes, np.cumsum(sizes) - sizes, strict=True):
            indices = draw[(draw >= start) & (draw < start + size)] - start
            if len(indices):
                positions = self.kept[task]["positions"][indices]
                batch = stage.earlier(task).batch(positions, stage.device)
                batches.append(MemoryBatch(batch, indices, len(indices) / count))
        return batches

    def memory_loss(self, stage: Stage, batches: list[MemoryBatch]) -> Tensor:
        """Return the mean loss of the rows of a draw, a scalar."""
        return torch.stack([stage.loss(part.batch) * part.share for part in batches]).sum()


class Replay(Rehearsal):
    """Experience replay (ER): each step also trains on rows kept from earlier tasks.

    Loss = loss of the batch + `weight` · mean loss of the rows drawn from the memory
    (Chaudhry et al. 2019b, "On tiny episodic memories in continual learning", Algorithm 1,
    which takes the mean over both together: the same gradient, halved, at weight 1 and equal
    sizes). These rows train their own heads too. See `Rehearsal` for the memory's settings.

    Attributes
    ----------
    weight
        Weight of the loss on the memory.
    """

    name: ClassVar[str] = "replay"
    weight: Annotated[float, Field(gt=0.0)] = 1.0

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the batch plus the weighted loss of rows from the memory."""
        loss = stage.loss(batch)
        if not self.kept:
            return loss
        replay_loss = self.memory_loss(stage, self.draw(stage, "replay"))
        if should_record(stage):
            stage.record("replay_loss", replay_loss)
        return loss + self.weight * replay_loss
