"""A task: labelled texts in splits, the head that answers them, and the metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clbench.errors import DataError
from clbench.messages import describe_type
from clbench.seeds import numpy_stream
from clbench.tasks.metrics import check_metrics

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TaskSource:
    """Where a loader may look for its rows.

    Attributes
    ----------
    data
        The folder given by ``--data``, or None.
    base
        Folder of the suite file, where relative paths in a suite start.
    """

    data: Path | None
    base: Path


@dataclass(frozen=True)
class Rows:
    """Labelled texts, column by column.

    Attributes
    ----------
    first
        The sentence, or the first sentence of a pair.
    second
        The second sentence of each pair; None for tasks of one sentence.
    labels
        Shape (n,): class numbers as int64, or targets as float32 for regression.
    index
        Shape (n,): position of each row in its source, so that a split can be saved.
    """

    first: Sequence[str]
    second: Sequence[str] | None
    labels: npt.NDArray[Any]
    index: IntArray

    @classmethod
    def of(
        cls,
        first: Sequence[str],
        second: Sequence[str] | None,
        labels: npt.ArrayLike,
        *,
        regression: bool = False,
    ) -> Rows:
        """Return rows made of plain columns, numbered from 0."""
        values = np.asarray(labels, dtype=np.float32 if regression else np.int64)
        return cls(first, second, values, np.arange(len(first), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.first)

    def take(self, positions: npt.ArrayLike) -> Rows:
        """Return the rows at `positions` (shape (m,), into this object), in that order."""
        at = np.asarray(positions, dtype=np.int64)
        second = None if self.second is None else [self.second[i] for i in at]
        return Rows([self.first[i] for i in at], second, self.labels[at], self.index[at])

    @cached_property
    def digest(self) -> str:
        """Hex digest of texts, labels and order; equal content gives an equal digest."""
        hasher = hashlib.blake2b(digest_size=16)
        for column in (self.first, self.second or ()):
            for text in column:
                data = text.encode()
                hasher.update(len(data).to_bytes(4, "little"))
                hasher.update(data)
            hasher.update(b"\xff\xff\xff\xff")
        hasher.update(np.ascontiguousarray(self.labels).tobytes())
        return hasher.hexdigest()


@dataclass(frozen=True)
class Task:
    """One thing to learn.

    Attributes
    ----------
    name
        Such as ``glue/sst2``; the parts of a shift add their part: ``glue/sst2[short]``.
    labels
        Names of the classes in the order of their numbers; empty for regression.
    metrics
        Names in `clbench.tasks.metrics.METRICS`; the first is the score in R, p_o and p_s.
    train, validation
        Training rows, and the rows that scores are reported on.
    tuning
        Rows held out of the training rows for anything that selects, or None.
    head
        Name of the head. Tasks with one head share a label space.
    source
        Where the rows come from (dataset, revision, digests of files), for the result.
    """

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    train: Rows
    validation: Rows
    head: str
    tuning: Rows | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def regression(self) -> bool:
        """Whether the target is a number."""
        return not self.labels

    @property
    def outputs(self) -> int:
        """Width of the head: number of classes, 1 for regression."""
        return len(self.labels) or 1

    @property
    def is_pair(self) -> bool:
        """Whether a row has two texts."""
        return self.train.second is not None

    def limited(self, limit: int | None, seed: int = 0) -> Task:
        """Return the task with at most `limit` rows a split, stratified, in source order.

        The draw depends on the task's name and `seed` only. Of each class, a smaller limit
        keeps a subset of the rows of a larger one as far as rounding allows.

        Raises
        ------
        DataError
            If the limit is smaller than the number of classes.
        """
        if limit is None:
            return self
        classes = len(np.unique(self.train.labels))
        if not self.regression and limit < classes:
            raise DataError(
                f"task {self.name!r}: a limit of {limit} is less than the number of classes, "
                f"{classes}. Use --limit {classes} or more (key `limit` in [protocol])."
            )

        limited: dict[str, Any] = {}
        for split, rows in (("train", self.train), ("validation", self.validation)):
            rng = numpy_stream("limit", self.name, split, seed)
            limited[split] = rows.take(stratified(rows.labels, limit, rng, self.regression))
        return replace(self, **limited)

    def scored_by(self, metric: str | None) -> Task:
        """Return the task with `metric` as its score; None changes nothing.

        A metric that is not registered for this kind of task is a DataError.
        """
        if metric is None:
            return self
        check_metrics(f"[protocol] task_metric of {self.name!r}", [metric], self.regression)
        return replace(self, metrics=tuple(dict.fromkeys((metric, *self.metrics))))

    def with_tuning(self, fraction: float, seed: int = 0) -> Task:
        """Hold `fraction` of the training rows out as the tuning split, stratified.

        Raises
        ------
        DataError
            If this leaves no row on one side.
        """
        where = f"task {self.name!r}: a tuning split of {fraction:g}"
        rng = numpy_stream("tuning", self.name, seed)
        train, tuning = hold_out(self.train, fraction, rng, self.regression, where)
        return replace(self, train=train, tuning=tuning)


def check_task(name: str, task: Any) -> Task:
    """Return what the loader of task `name` returned, if it can be trained on and scored.

    Raises
    ------
    DataError
        Naming the split and what is wrong with it.
    """
    where = f"task {name!r}"
    if not isinstance(task, Task):
        raise DataError(f"{where}: its loader returned {type(task).__name__}, not a Task.")
    if task.name != name:
        raise DataError(f"{where}: its loader named it {task.name!r}. Use one name for both.")
    if len(task.labels) == 1:
        raise DataError(f"{where}: there is only one class, {task.labels[0]!r}.")
    if not task.metrics:
        raise DataError(f"{where}: it has no metric.")
    check_metrics(where, task.metrics, task.regression)
    _check_rows(task, task.train, f"{where}, train rows")
    _check_rows(task, task.validation, f"{where}, validation rows")
    if task.tuning is not None:
        _check_rows(task, task.tuning, f"{where}, tuning rows")
    return task


def _check_rows(task: Task, rows: Rows, where: str) -> None:
    if len(rows) == 0:
        raise DataError(f"{where}: there are none.")
    if (rows.second is None) == task.is_pair:
        raise DataError(f"{where}: every split needs as many texts a row as the training rows.")
    for column in filter(None, (rows.first, rows.second)):
        if not len(column) == len(rows.labels) == len(rows.index):
            raise DataError(
                f"{where}: {len(column)} texts, {len(rows.labels)} labels and {len(rows.index)} "
                "positions; every row needs one of each."
            )
        for at, text in enumerate(column):
            if not isinstance(text, str):
                raise DataError(
                    f"{where}: the text of row {at} is {text!r}, {describe_type(text)}."
                )
    valid, allowed = np.isfinite(rows.labels), "finite numbers"
    if not task.regression:
        valid = (rows.labels >= 0) & (rows.labels < len(task.labels))
        allowed = f"0 to {len(task.labels) - 1}"
    if not valid.all():
        at = int(np.flatnonzero(~valid)[0])
        hint = " (-1 marks an unlabelled test split)" if rows.labels[at] == -1 else ""
        raise DataError(
            f"{where}: the label of row {at} is {rows.labels[at]}{hint}; labels must be {allowed}."
        )


def hold_out(
    rows: Rows, fraction: float, rng: np.random.Generator, regression: bool, where: str
) -> tuple[Rows, Rows]:
    """Return the other rows, and `fraction` of the rows, stratified; neither may be empty."""
    count = round(len(rows) * fraction)
    if not 0 < count < len(rows):
        raise DataError(f"{where} of {len(rows)} rows leaves one side empty. Use another fraction.")
    held_out = stratified(rows.labels, count, rng, regression)
    rest = np.setdiff1d(np.arange(len(rows)), held_out)
    return rows.take(rest), rows.take(held_out)


def stratified(
    labels: npt.NDArray[Any], count: int, rng: np.random.Generator, regression: bool = False
) -> IntArray:
    """Return the positions of `count` rows, or of all n, with the classes in proportion, ascending.

    Rounds by largest remainder, so that class counts are off by less than one; every class
    that has rows keeps at least one if `count` allows. Regression targets are drawn evenly
    over their sorted order, one from each of `count` quantile bins.
    """
    total = len(labels)
    if count >= total:
        return np.arange(total, dtype=np.int64)
    if regression:
        order = np.lexsort((rng.permutation(total), labels))
        edges = np.arange(count + 1, dtype=np.int64) * total // count
        picks = edges[:-1] + (rng.random(count) * np.diff(edges)).astype(np.int64)
        return np.sort(order[picks])
    classes, sizes = np.unique(labels, return_counts=True)
    quota, rest = np.divmod(sizes.astype(np.int64) * count, total)
    largest = np.argsort(-rest, kind="stable")
    quota[largest[: count - int(quota.sum())]] += 1
    if count >= len(classes):
        for empty in np.flatnonzero(quota == 0):
            quota[np.argmax(quota)] -= 1
            quota[empty] += 1
    chosen = [
        rng.permutation(np.flatnonzero(labels == value))[:size]
        for value, size in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(chosen))
