"""What a task is: labelled texts in splits, the head that answers them, and the metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from clbench.errors import DataError
from clbench.seeds import numpy_stream

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Labelled texts, column by column.

    Attributes
    ----------
    first
        The sentence, or the first of a pair.
    second
        The second of each pair; None for tasks of one sentence.
    labels
        Shape (n,): class numbers as int64, or targets as float32 for regression.
    index
        Shape (n,): each row's position in its source, so that a split can be saved.
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
        """Rows from plain columns, numbered from 0."""
        values = np.asarray(labels, dtype=np.float32 if regression else np.int64)
        return cls(first, second, values, np.arange(len(first), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.first)

    def take(self, positions: npt.ArrayLike) -> Rows:
        """The rows at `positions` (shape (m,), into this object), in that order."""
        at = np.asarray(positions, dtype=np.int64)
        second = None if self.second is None else [self.second[i] for i in at]
        return Rows([self.first[i] for i in at], second, self.labels[at], self.index[at])

    @cached_property
    def digest(self) -> str:
        """A hex digest of texts, labels and order; equal content gives an equal digest."""
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
        Such as ``glue/sst2``; parts of a shift add their part: ``glue/sst2[short]``.
    labels
        Names of the classes in the order of their numbers; empty for regression.
    metrics
        Names in `clbench.tasks.metrics`; the first is the score that R, p_o and p_s hold.
    train, validation
        Training rows and the rows that are reported.
    tuning
        Rows held out of the training rows for anything that selects, or None.
    head
        Name of the head. Tasks with one head share a label space.
    source
        Where the rows came from (dataset, revision, files and digests), for the result.
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
        """At most `limit` rows of each split, stratified by label, in source order.

        The draw depends on the task's name and `seed` only, and a smaller limit takes a
        subset of a larger one's rows of each class as far as rounding allows.

        Raises
        ------
        DataError
            If it is smaller than the number of classes.
        """
        if limit is None:
            return self
        classes = len(np.unique(self.train.labels))
        if not self.regression and limit < classes:
            raise DataError(
                f"task {self.name!r}: a limit of {limit} keeps fewer rows than the task has "
                f"classes ({classes}). Use --limit {classes} or more (key `limit` in [protocol])."
            )
        return replace(
            self,
            train=_limit(self, self.train, "train", limit, seed),
            validation=_limit(self, self.validation, "validation", limit, seed),
        )

    def scored_by(self, metric: str | None) -> Task:
        """The task with one of its metrics as the first, which is its score; None changes none.

        Raises
        ------
        DataError
            If it has no such metric.
        """
        if metric is None:
            return self
        if metric not in self.metrics:
            raise DataError(
                f"[protocol] task_metric of {self.name!r}: {metric!r} is none of its metrics. "
                f"Take {' or '.join(self.metrics)}."
            )
        return replace(self, metrics=tuple(dict.fromkeys((metric, *self.metrics))))

    def with_tuning(self, fraction: float, seed: int = 0) -> Task:
        """Hold `fraction` of the training rows out as the tuning split, stratified by label.

        Raises
        ------
        DataError
            If either side would be left empty.
        """
        count = round(len(self.train) * fraction)
        if not 0 < count < len(self.train):
            raise DataError(
                f"task {self.name!r}: a tuning split of {fraction:g} of {len(self.train)} "
                "training rows leaves one side empty. Use more rows or another fraction."
            )
        held = stratified(
            self.train.labels, count, numpy_stream("tuning", self.name, seed), self.regression
        )
        kept = np.setdiff1d(np.arange(len(self.train)), held)
        return replace(self, train=self.train.take(kept), tuning=self.train.take(held))


def stratified(
    labels: npt.NDArray[Any], count: int, rng: np.random.Generator, regression: bool = False
) -> IntArray:
    """Positions of `count` rows with the classes in their proportions, ascending.

    Largest-remainder rounding, so class counts are off by less than one; every class
    that has rows keeps at least one when `count` allows. Regression targets are drawn
    evenly over their sorted order (one from each of `count` quantile bins).

    Parameters
    ----------
    labels
        Shape (n,).
    count
        Number of rows, at most n; more gives all rows.
    rng
        Stream that the draw comes from.
    regression
        Whether labels are targets instead of classes.

    Returns
    -------
    IntArray
        Shape (min(count, n),).
    """
    total = len(labels)
    if count >= total:
        return np.arange(total, dtype=np.int64)
    if count <= 0:
        return np.empty(0, dtype=np.int64)
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
        for poor in np.flatnonzero(quota == 0):
            quota[np.argmax(quota)] -= 1
            quota[poor] += 1
    chosen = [
        rng.permutation(np.flatnonzero(labels == value))[:size]
        for value, size in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


def _limit(task: Task, rows: Rows, split: str, limit: int, seed: int) -> Rows:
    rng = numpy_stream("limit", task.name, split, seed)
    return rows.take(stratified(rows.labels, limit, rng, task.regression))
