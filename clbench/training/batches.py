"""Batches of training rows, drawn from the stage's random stream and never by the method."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor

from clbench.core.seeds import numpy_stream
from clbench.models.encoding import IGNORED, EncodedRows
from clbench.tasks.task import IntArray

GROUP = 8
"""Batches that are sorted by length together; more means less padding and less shuffling.

Batches of rows of equal length train worse. On MRPC (MiniLM, 1 epoch, 5 seeds) the mean accuracy
was .745 with 50, .767 with 8 and .773 without sorting; padding adds 2, 7 and 43 % to the tokens.
"""


class Endless(Iterator[Any]):
    """The items of one pass after another, which draw from generators; it can be continued."""

    def __init__(self, one_pass: Callable[..., Iterable[Any]], *generators: Generator) -> None:
        self._pass, self._generators = one_pass, generators
        self._items: Iterator[Any] = iter(())
        self._count = 0
        self._starts = [each.get_state() for each in generators]

    def __next__(self) -> Any:
        for item in self._items:
            self._count += 1
            return item
        self._begin()
        return next(self)

    def _begin(self) -> None:
        self._starts = [each.get_state() for each in self._generators]
        self._items, self._count = iter(self._pass(*self._generators)), 0

    def get_state(self) -> Tensor:
        """Return the number of items in this pass, and the generators' states before it."""
        return torch.cat([torch.tensor([self._count]).view(torch.uint8), *self._starts])

    def set_state(self, state: Tensor) -> None:
        """Continue from a state."""
        sizes = [8, *map(len, self._starts)]
        count, *starts = (part.clone() for part in torch.split(state, sizes))
        for generator, start in zip(self._generators, starts, strict=True):
            generator.set_state(start)
        self._begin()
        for _ in range(int(count.view(torch.int64))):
            next(self)


@dataclass(frozen=True)
class Batch:
    """Rows of one task, padded to the longest.

    Attributes
    ----------
    inputs
        ``input_ids``, ``attention_mask`` and, for models with segments,
        ``token_type_ids``; int64, shape (b, t), or (b, k, t) for multiple choice.
    labels
        Shape (b,): classes (int64) or targets (float32). For language models, shape (b, m): the
        tokens of the answers, -100 behind them.
    head, regression, task
        As in `TaskData`.
    positions
        Shape (b,): positions of these rows in the task's training data.
    tokens
        Number of real tokens, padding not counted.
    compared
        As in `TaskData`.
    """

    inputs: dict[str, Tensor]
    labels: Tensor
    head: str
    regression: bool
    task: int
    positions: IntArray
    tokens: int
    compared: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def asks_for_words(self) -> bool:
        """Whether labels are tokens of answers, shape (b, m), as for language models."""
        return self.labels.dim() == 2

    @property
    def terms(self) -> int:
        """Number of terms of the mean loss: rows, or for language models tokens of answers."""
        return int((self.labels != IGNORED).sum()) if self.asks_for_words else len(self)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return outputs of shape (b, …) with one row for each prediction.

        For language models, outputs are of shape (b, m, v), or wider where other rows have longer
        answers, and every token of an answer is a prediction: shape (n, v).
        """
        if not self.asks_for_words:
            return outputs
        return outputs[:, : self.labels.shape[1]][self.labels != IGNORED]

    def token_rows(self) -> Tensor:
        """Return the number of the row that each label of shape (b, m) belongs to."""
        rows = torch.arange(len(self.labels), device=self.labels.device)
        return rows[:, None].expand_as(self.labels)

    def prompts(self) -> tuple[Tensor, Tensor]:
        """Return where each row begins and where its answer is first predicted, shape (b,)."""
        first, mask = self.inputs["predict"][:, 0], self.inputs.get("attention_mask")
        # Padding may be on the left.
        return torch.zeros_like(first) if mask is None else mask.int().argmax(1), first

    def among_compared(self, outputs: Tensor) -> Tensor:
        """Return outputs of shape (b, …, outputs), -inf for classes that the loss leaves out."""
        if self.compared is None:
            return outputs
        return outputs.masked_fill(~self.compared[: outputs.shape[-1]], -torch.inf)

    def take(self, rows: list[int]) -> Self:
        """Return some rows of the batch; a row may be taken twice."""
        return replace(
            self,
            inputs={name: value[rows] for name, value in self.inputs.items()},
            labels=self.labels[rows],
            positions=self.positions[rows],
        )

    def parts(self, count: int) -> list[tuple[Self, float]]:
        """Return the batch in at most `count` parts, with the share of each in the mean loss."""
        if count == 1:
            return [(self, 1.0)]
        parts = [self.take(rows.tolist()) for rows in torch.arange(len(self)).chunk(count)]
        terms = [part.terms for part in parts]
        return [(part, own / sum(terms)) for part, own in zip(parts, terms, strict=True)]


@dataclass(frozen=True)
class TaskData:
    """Tokenised rows of one task."""

    task: int  # position of the task in the scenario
    name: str
    head: str  # name of the task's head
    regression: bool  # whether labels are numbers instead of classes
    rows: EncodedRows
    pad_id: int  # token id of padding
    compared: Tensor | None = None  # classes that the loss compares, bool, (outputs,); None: all
    metric: str = ""  # which scores texts to write; empty for other tasks

    def batch(self, positions: IntArray, device: torch.device) -> Batch:
        """Return the rows at `positions` as one batch on `device`."""
        inputs, labels = self.rows.collate(positions, self.pad_id)
        tokens = int(self.rows.lengths[positions].sum())
        if device.type != "cpu":
            inputs = {key: _move(value, device) for key, value in inputs.items()}
            labels = _move(labels, device)
        own = self.head, self.regression, self.task
        return Batch(inputs, labels, *own, positions, tokens, self.compared)

    def longest_first(
        self, size: int, device: torch.device, rows: IntArray | None = None
    ) -> Iterator[Batch]:
        """Yield batches of at most `size` rows, the longest first; of all rows, or of some."""
        rows = np.arange(len(self.rows)) if rows is None else rows
        order = rows[np.argsort(-self.rows.lengths[rows], kind="stable")]
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size], device)


def length_grouped(lengths: IntArray, batch_size: int, rng: np.random.Generator) -> list[IntArray]:
    """Return the batches of one epoch, shuffled, each with rows of similar length.

    `lengths` are the tokens of each row, shape (n,). One batch may be smaller than the others.
    """
    order = rng.permutation(len(lengths))
    batches: list[IntArray] = []
    for start in range(0, len(order), batch_size * GROUP):
        group = order[start : start + batch_size * GROUP]
        group = group[np.argsort(-lengths[group], kind="stable")]
        batches += [group[i : i + batch_size] for i in range(0, len(group), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


PlannedBatch = tuple[TaskData, IntArray]
"""The data of a batch, and the positions of its rows in them."""


def plan(
    data: Sequence[TaskData], sizes: Sequence[int], steps: int, stream: Sequence[str | int]
) -> Iterator[PlannedBatch]:
    """Yield the data and the row positions of each of `steps` batches, epoch after epoch.

    Several tasks are mixed batch by batch, each in batches of its size. `stream` names the random
    stream; the epoch is added.
    """
    remaining = steps
    for epoch in count():
        if remaining <= 0:
            return
        rng = numpy_stream(*stream, epoch)
        batches = [
            (source, positions)
            for source, size in zip(data, sizes, strict=True)
            for positions in length_grouped(source.rows.lengths, size, rng)
        ]
        if len(data) > 1:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        yield from batches[:remaining]
        remaining -= len(batches)


def padded_size(batch: PlannedBatch) -> int:
    """Return the tokens of a batch of a plan, padding included."""
    data, positions = batch
    return len(positions) * int(data.rows.lengths[positions].max())


def largest_batches(batches: Sequence[PlannedBatch]) -> frozenset[int]:
    """Return the numbers of two batches of a plan: its largest, and the largest of its last tenth.

    The size is that of the padded tensors, which decides the memory of a step.
    """
    sizes = [padded_size(batch) for batch in batches]
    if not sizes:
        return frozenset()
    steps = range(len(sizes))
    return frozenset(
        max(part, key=sizes.__getitem__) for part in (steps, steps[-max(1, len(sizes) // 10) :])
    )


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
