"""Which rows go into which batch: drawn from the stage's stream, never from the method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clbench.models.encoding import EncodedRows
from clbench.seeds import numpy_stream
from clbench.tasks.task import IntArray

GROUP = 8
"""Batches that are sorted by length together; more means less padding and less shuffling.

Batches of rows that are all alike in length train worse. On MRPC (MiniLM, 1 epoch, 5 seeds)
the mean accuracy was .745 with 50, .767 with 8 and .773 with none; padding adds 2, 7 and 43 %
to the tokens.
"""


@dataclass(frozen=True)
class TaskData:
    """Tokenised training rows of one task.

    Attributes
    ----------
    task
        Position of the task in the scenario.
    name, head
        Names of the task and of its head.
    regression
        Whether labels are targets.
    rows
        The rows.
    pad_id
        Token number that fills a batch up.
    """

    task: int
    name: str
    head: str
    regression: bool
    rows: EncodedRows
    pad_id: int

    def batch(self, positions: IntArray, device: torch.device) -> Batch:
        """The rows at `positions` as one batch on `device`."""
        inputs, labels = self.rows.collate(positions, self.pad_id)
        tokens = int(self.rows.lengths[positions].sum())
        if device.type != "cpu":
            inputs = {key: _move(value, device) for key, value in inputs.items()}
            labels = _move(labels, device)
        return Batch(inputs, labels, self.head, self.regression, self.task, positions, tokens)


@dataclass(frozen=True)
class Batch:
    """Rows of one task, padded to the longest.

    Attributes
    ----------
    inputs
        ``input_ids``, ``attention_mask`` and, for models with segments,
        ``token_type_ids``; int64, shape (b, t).
    labels
        Shape (b,): classes (int64) or targets (float32).
    head, regression, task
        As in `TaskData`.
    positions
        Shape (b,): which rows of the task's training data these are.
    tokens
        Real tokens, padding not counted.
    """

    inputs: dict[str, Tensor]
    labels: Tensor
    head: str
    regression: bool
    task: int
    positions: IntArray
    tokens: int

    def __len__(self) -> int:
        return len(self.labels)


def length_grouped(lengths: IntArray, batch_size: int, rng: np.random.Generator) -> list[IntArray]:
    """One epoch: every row once, in batches of rows of similar length, batches shuffled.

    Parameters
    ----------
    lengths
        Shape (n,), in tokens.
    batch_size
        Rows in a batch; the last of an epoch may be smaller.
    rng
        The only source of randomness.
    """
    order = rng.permutation(len(lengths))
    batches: list[IntArray] = []
    for start in range(0, len(order), batch_size * GROUP):
        group = order[start : start + batch_size * GROUP]
        group = group[np.argsort(-lengths[group], kind="stable")]
        batches += [group[i : i + batch_size] for i in range(0, len(group), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def plan(
    portions: Sequence[TaskData], batch_size: int, steps: int, stream: Sequence[str | int]
) -> Iterator[tuple[TaskData, IntArray]]:
    """Batches of `steps` steps, epoch after epoch.

    Parameters
    ----------
    portions
        Usually the stage's own rows; several are mixed batch by batch.
    batch_size
        Rows in a batch.
    steps
        Batches in all.
    stream
        Name of the random stream, without the epoch.
    """
    done, epoch = 0, 0
    while done < steps:
        rng = numpy_stream(*stream, epoch)
        mixed = [
            (portion, batch)
            for portion in portions
            for batch in length_grouped(portion.rows.lengths, batch_size, rng)
        ]
        if len(portions) > 1:
            mixed = [mixed[i] for i in rng.permutation(len(mixed))]
        yield from mixed[: steps - done]
        done += len(mixed)
        epoch += 1


def largest(
    portions: Sequence[TaskData], batch_size: int, steps: int, stream: Sequence[str | int]
) -> frozenset[int]:
    """The step with the largest batch of a plan, and that of its last tenth, numbered from 0.

    The size is that of the padded tensors, on which the memory of a step depends. Arguments are
    those of `plan`.
    """
    sizes = [
        len(positions) * int(portion.rows.lengths[positions].max())
        for portion, positions in plan(portions, batch_size, steps, stream)
    ]
    parts = (range(steps), range(steps - max(1, steps // 10), steps))
    return frozenset(max(part, key=sizes.__getitem__) for part in parts)


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
