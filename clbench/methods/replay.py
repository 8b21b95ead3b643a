"""Methods that keep rows of earlier tasks: replay, A-GEM, DER++, and joint training on all rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.base import Method, Phase
from clbench.tasks.task import IntArray
from clbench.training.batches import Batch, TaskData
from clbench.training.context import Context
from clbench.training.stage import Stage


class MemoryBatch(NamedTuple):
    """Rows of one task drawn from the memory."""

    batch: Batch
    indices: IntArray  # their positions among the task's rows in the memory, shape (b,)
    share: float  # weight of its mean loss; the shares of a draw sum to 1


class Rehearsal(Method):
    """Base of methods that keep some rows of each task and replay them.

    When a stage ends, each of its rows gets a random key, and the rows with the smallest keys
    stay. The memory is filled at the end of a stage because task boundaries are known here, so
    the first stage equals vanilla's. A stage of less than one pass has rows that it has not read;
    these may stay, too.

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
        has (Chaudhry et al. 2019b, Algorithm 1). With `accumulation`, replay and DER++ divide
        them among the parts of the batch.
    """

    keeps_rows = True
    memory: Annotated[int, Field(ge=1)] = 200
    choice: Literal["task", "reservoir"] = "task"
    recall: Annotated[int, Field(ge=1)] | None = None

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, in which the memory is empty."""
        return index > 0

    def setup(self, context: Context) -> None:
        """Start with an empty memory."""
        self.kept: dict[int, dict[str, Any]] = {}
        self._drawn: dict[str, list[MemoryBatch]] = {}

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

    def draw_part(self, stage: Stage, name: str) -> list[MemoryBatch]:
        """Return the rows of a step's draw that the running part of its batch reads, if any.

        Over all parts of a step, terms weighted by the shares add up to those of the whole draw.
        """
        if stage.part == 0:
            self._drawn[name] = self.draw(stage, name)
        if stage.parts == 1:
            return self._drawn.pop(name)
        own = stage.part_of(sum(len(each.indices) for each in self._drawn[name]))
        batches, start = [], 0
        for batch, indices, share in self._drawn[name]:
            rows = [row for row in range(len(indices)) if start + row in own]
            start += len(indices)
            if rows:
                part = batch.take(rows)
                weight = share * part.terms / batch.terms / stage.part_share
                batches.append(MemoryBatch(part, indices[rows], weight))
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

    name = "replay"
    weight: Annotated[float, Field(gt=0.0)] = 1.0

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the batch plus the weighted loss of rows from the memory."""
        loss = stage.loss(batch)
        if not (drawn := self.draw_part(stage, "replay")):
            return loss
        replay_loss = self.memory_loss(stage, drawn)
        stage.sample("replay_loss", replay_loss)
        return loss + self.weight * replay_loss


class AGem(Rehearsal):
    """Averaged gradient episodic memory: project gradients that conflict with earlier tasks.

    With g the gradient of the batch and r that of rows drawn from the memory, g becomes
    g - (g·r / r·r) r if g·r < 0 (Chaudhry et al. 2019a, "Efficient lifelong learning
    with A-GEM", equation 11). g and r cover the weights that tasks share: backbone and
    shared heads. See `Rehearsal` for the settings of the memory.
    """

    name = "a-gem"
    holds_head = True

    def before_stage(self, stage: Stage) -> None:
        """Reset the count of conflicts."""
        self._conflicts = torch.zeros((), device=stage.device)
        self._steps = 0

    def before_phase(self, stage: Stage) -> None:
        """Train no heads of earlier tasks, unlike other rehearsal methods."""

    def edit_gradients(self, stage: Stage) -> None:
        """Project a conflicting gradient, without waiting for the device."""
        if not self.kept:
            return
        weights = dict(stage.model.named_parameters())
        shared = [weights[n] for n in stage.shared_names() if weights[n].grad is not None]
        loss = self.memory_loss(stage, self.draw(stage, "a-gem"))
        references = torch.autograd.grad(loss, shared, allow_unused=True)
        pairs = [
            (weight.grad, reference)
            for weight, reference in zip(shared, references, strict=True)
            if weight.grad is not None and reference is not None
        ]
        dot = project([g for g, _ in pairs], [r for _, r in pairs])
        self._conflicts += dot < 0
        self._steps += 1
        stage.sample("projected_share", self._conflicts / self._steps)


@torch.no_grad()
def project(gradients: list[Tensor], references: list[Tensor]) -> Tensor:
    """Remove from the gradients g, in place, the component that points against the references r.

    Both are lists with one tensor for each weight. Returns g·r before the projection, a scalar.
    """
    dot = _dot(gradients, references)
    norm = _dot(references, references)
    factor = torch.where(norm > 0, dot.clamp(max=0.0) / norm, torch.zeros_like(dot))
    torch._foreach_sub_(gradients, torch._foreach_mul(references, factor))
    return dot


def _dot(first: list[Tensor], second: list[Tensor]) -> Tensor:
    products = torch._foreach_mul(first, second)
    return torch.stack([product.sum() for product in products]).sum()


class DerPlusPlus(Rehearsal):
    """DER++: replay that also preserves the outputs for rows in the memory.

    Loss = loss of the batch + α · mean squared difference between current and stored
    outputs + β · loss on labels, each on its own draw from the memory (Buzzega et
    al. 2020, equation 6; the mean is over rows and outputs, as in the authors' code).
    See `Rehearsal` for the settings of the memory.

    Outputs are stored without dropout when a row's stage ends, because task boundaries are
    known here; the paper, written for streams without boundaries, stores them during training.

    Attributes
    ----------
    alpha, beta
        Weights of the terms for outputs and for labels; β = 0 is DER.
    """

    name = "der++"
    alpha: Annotated[float, Field(gt=0.0)] = 0.1
    beta: Annotated[float, Field(ge=0.0)] = 0.5

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the batch and both terms on the memory."""
        total = stage.loss(batch)
        if drawn := self.draw_part(stage, "outputs"):
            distance = self._distance(stage, drawn)
            stage.sample("outputs_distance", distance)
            total = total + self.alpha * distance
        if self.beta > 0 and (drawn := self.draw_part(stage, "labels")):
            total = total + self.beta * self.memory_loss(stage, drawn)
        return total

    def after_stage(self, stage: Stage) -> None:
        """Fill the memory, and store the model's outputs for the new rows."""
        super().after_stage(stage)
        entry = self.kept[stage.index]
        if len(entry["positions"]):
            rows = stage.data.rows.take(entry["positions"])
            outputs = stage.outputs(replace(stage.data, rows=rows))
            entry["outputs"] = torch.from_numpy(outputs).to(stage.device)

    def _distance(self, stage: Stage, batches: list[MemoryBatch]) -> Tensor:
        """Return the mean squared difference to the stored outputs of drawn rows, a scalar."""
        terms = []
        for part in batches:
            stored = self.kept[part.batch.task]["outputs"]
            target = stored[torch.from_numpy(part.indices).to(stored.device)]
            outputs = stage.logits(part.batch)[..., : target.shape[-1]]  # a head may have grown
            outputs, target = (part.batch.predictions(values) for values in (outputs, target))
            terms.append(nn.functional.mse_loss(outputs, target) * part.share)
        return torch.stack(terms).sum()


class Multitask(Method):
    """Train jointly on all tasks seen so far, starting over in each stage.

    Stage i starts from the pretrained weights and the initial heads. Each batch holds rows of
    one task and trains its head; batches of all tasks are shuffled together, so each task is
    weighted by its number of rows (Caruana 1997, the plain sum of the tasks' losses). Stage 0
    equals vanilla's.

    A stage has as many steps as the stages of its tasks have together under the protocol: with
    equal epochs every row is seen that many times. Where tasks have different epochs, the
    steps are still summed, and all rows are seen equally often.
    """

    name = "multitask"
    control = True
    keeps_rows = True

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage: one task alone is not joint training."""
        return index > 0

    def setup(self, context: Context) -> None:
        """Keep the weights that each stage starts from."""
        self._start = context.snapshot([name for name, _ in context.model.named_parameters()])

    def before_stage(self, stage: Stage) -> None:
        """Restore the initial weights."""
        stage.restore(self._start)

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        """Return the rows of every task so far."""
        return [stage.earlier(task) for task in range(stage.index + 1)]

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return one phase as long as the tasks' own stages together."""
        tasks = self.training_data(stage)
        lengths = [stage.protocol.stage_length(task.name, len(task.rows))[0] for task in tasks]
        return [Phase(steps=sum(lengths))]
