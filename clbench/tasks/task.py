"""A task: splits of labelled texts, the head that is trained on them, and the metrics."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from clbench.core.errors import DataError, named
from clbench.core.seeds import numpy_stream
from clbench.tasks.metrics import METRICS, check_metrics
from clbench.tasks.sampling import IntArray as IntArray
from clbench.tasks.sampling import stratified, whole_groups
from clbench.tasks.template import Template


@dataclass(frozen=True)
class TaskSource:
    """Where a task loader reads its rows.

    Attributes
    ----------
    data
        The folder given by ``--data``, or None.
    base
        Folder of the suite file, which relative paths in a suite are resolved against.
    """

    data: Path | None
    base: Path


@dataclass(frozen=True)
class Rows:
    """Labelled texts, list by list.

    Attributes
    ----------
    first
        The sentence, or the first sentence of a pair.
    second
        The second sentence of each pair; None for tasks of one sentence.
    labels
        Shape (n,): class numbers as int64, or targets as float32 for regression.
    index
        Shape (n,): position of each row in its source; saved splits refer to it.
    choices
        For multiple choice, k lists of texts: the model reads `first` with each of them, and the
        label is the number of the right one. Empty for other tasks.
    groups
        Shape (n,): equal numbers for rows that metrics score together, such as all answers to a
        question; or None.
    targets
        Texts to write, for tasks without classes (their labels are 0); or None.
    group_sizes
        Shape (n,): number of rows of each row's group in the source, by default here.
    """

    first: Sequence[str]
    second: Sequence[str] | None
    labels: np.typing.NDArray[Any]
    index: IntArray
    choices: tuple[Sequence[str], ...] = ()
    groups: IntArray | None = None
    targets: Sequence[str] | None = None
    group_sizes: IntArray | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and self.group_sizes is None:
            _, numbers, sizes = np.unique(self.groups, return_inverse=True, return_counts=True)
            object.__setattr__(self, "group_sizes", sizes[numbers.ravel()])

    @classmethod
    def of(
        cls,
        first: Sequence[str],
        second: Sequence[str] | None,
        labels: np.typing.ArrayLike,
        *,
        regression: bool = False,
    ) -> Self:
        """Return rows from plain lists, with positions from 0."""
        with np.errstate(over="ignore"):  # a target that becomes infinite is refused later
            values = np.asarray(labels, dtype=np.float32 if regression else np.int64)
        return cls(first, second, values, np.arange(len(first), dtype=np.int64))

    @classmethod
    def joined(cls, parts: "Sequence[Rows]") -> Self:
        """Return all rows of `parts`, which are of one kind, with new positions.

        Groups of different parts stay apart; there are none unless every part has them.
        """
        first, *second = (
            list(chain.from_iterable(lists))
            for lists in zip(*(rows.texts for rows in parts), strict=True)
        )
        labels = np.concatenate([rows.labels for rows in parts])
        targets = [*chain.from_iterable(rows.targets or () for rows in parts)] or None
        index = np.arange(len(first), dtype=np.int64)
        joined = cls(first, second[0] if second else None, labels, index, targets=targets)
        groups: list[IntArray] = []
        sizes: list[IntArray] = []
        number = 0
        for rows in parts:
            if rows.groups is None or rows.group_sizes is None:
                return joined
            names, numbers = np.unique(rows.groups, return_inverse=True)
            groups.append(numbers.ravel() + number)
            sizes.append(rows.group_sizes)
            number += len(names)
        return replace(joined, groups=np.concatenate(groups), group_sizes=np.concatenate(sizes))

    def __len__(self) -> int:
        return len(self.first)

    def take(self, positions: np.typing.ArrayLike) -> Self:
        """Return the rows at `positions` of this object, shape (m,), in that order."""
        rows = np.asarray(positions, dtype=np.int64)
        first, *others = ([texts[i] for i in rows] for texts in self.texts)
        return type(self)(
            first,
            None if self.second is None else others[0],
            self.labels[rows],
            self.index[rows],
            tuple(others) if self.choices else (),
            None if self.groups is None else self.groups[rows],
            None if self.targets is None else [self.targets[i] for i in rows],
            None if self.group_sizes is None else self.group_sizes[rows],
        )

    def where(self, kept: np.typing.NDArray[np.bool_]) -> Self:
        """Return the rows at which `kept`, shape (n,), is true."""
        return self if kept.all() else self.take(np.flatnonzero(kept))

    def drawn(self, count: int, rng: np.random.Generator) -> IntArray:
        """Return the positions of at most `count` rows, as `stratified` draws them."""
        return stratified(self.labels, count, rng, self.labels.dtype.kind == "f")

    def sample(self, count: int, rng: np.random.Generator) -> Self:
        """Return at most `count` rows, as `stratified` draws them."""
        return self.take(self.drawn(count, rng))

    @property
    def torn_groups(self) -> int:
        """The number of groups of which only some rows are here."""
        if self.groups is None or self.group_sizes is None:
            return 0
        _, first, here = np.unique(self.groups, return_index=True, return_counts=True)
        return int((here < self.group_sizes[first]).sum())

    @property
    def texts(self) -> tuple[Sequence[str], ...]:
        """The texts of all rows: the first ones, then the second ones or the choices."""
        return (self.first, *self.choices) if self.second is None else (self.first, self.second)

    @cached_property
    def digest(self) -> str:
        """Hex digest of texts, labels and order."""
        hasher = hashlib.blake2b(digest_size=16)
        for texts in self.texts if self.texts[1:] else (self.first, ()):
            for text in texts:
                data = text.encode()
                hasher.update(len(data).to_bytes(4, "little"))
                hasher.update(data)
            hasher.update(b"\xff\xff\xff\xff")
        hasher.update(np.ascontiguousarray(self.labels).tobytes())
        if self.groups is not None:
            hasher.update(np.ascontiguousarray(self.groups).tobytes())
        if self.targets is not None:
            hasher.update("\0".join(self.targets).encode())
        return hasher.hexdigest()


@dataclass(frozen=True)
class Task:
    """A task to train and score on.

    Attributes
    ----------
    name
        Such as ``glue/sst2``; a part made by a shift is called ``glue/sst2[short]``.
    labels
        Names of the classes in the order of their numbers; empty for regression.
    metrics
        Names in `clbench.tasks.metrics.METRICS`; the first gives R, p_o and p_s.
    train, validation
        Training rows, and the rows that reported scores come from.
    tuning
        Rows held out of the training rows for tuning and model selection, or None.
    head
        Name of the head. Tasks with the same head share a label space.
    source
        Origin of the rows (dataset, revision, digests of files), recorded in results.
    own
        Where tasks share a head and the model is not told the task: numbers of the task's own
        classes among `labels`. Empty elsewhere.
    seen
        Classes that a growing head has once it learns this task: the first ones. None for all.
    template
        Prompts and answers for language models; None is `Template.default`.
    """

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    train: Rows
    validation: Rows
    head: str
    tuning: Rows | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    own: tuple[int, ...] = ()
    seen: int | None = None
    template: Template | None = None

    @property
    def regression(self) -> bool:
        """Whether the target is a number."""
        return not self.labels and not self.free_text

    @property
    def free_text(self) -> bool:
        """Whether the target is a text to write, which takes a language model."""
        return self.train.targets is not None

    @property
    def outputs(self) -> int:
        """Width of the head: the number of classes; 1 for regression and multiple choice."""
        return 1 if self.train.choices else len(self.labels) or 1

    @property
    def is_pair(self) -> bool:
        """Whether a row has two texts."""
        return self.train.second is not None

    @property
    def effective_template(self) -> Template:
        """The template, by default `Template.default`."""
        return self.template or Template.default(self.is_pair)

    @property
    def can_share_head(self) -> bool:
        """Whether it has classes that other tasks could have: no numbers, texts or choices."""
        return bool(self.labels) and not self.train.choices

    @property
    def group_metrics(self) -> list[str]:
        """The metrics that score groups of rows."""
        if self.free_text or self.validation.groups is None:
            return []
        return [metric for metric in self.metrics if METRICS.get(metric).grouped]

    @property
    def splits(self) -> dict[str, Rows]:
        """The rows by split; a missing tuning split is left out."""
        splits = {"train": self.train, "validation": self.validation}
        return splits if self.tuning is None else {**splits, "tuning": self.tuning}

    def with_rows(self, change: Callable[[Rows], Rows]) -> Self:
        """Return the task after `change` of the rows of each split."""
        changed: dict[str, Any] = {name: change(rows) for name, rows in self.splits.items()}
        return replace(self, **changed)

    def limited(
        self,
        limit: int | None,
        seed: int = 0,
        *,
        scored: int | None = None,
        by_class: bool = False,
        scored_by_class: bool | None = None,
        every_class: bool = False,
    ) -> Self:
        """Return the task with fewer rows, stratified, in source order.

        `limit` is the largest number of training rows, by default all, and `scored` that of
        validation and tuning rows, by default `limit`. With `by_class` the limits hold for each
        class, not for all rows; `scored_by_class` says so for `scored` alone. The sample depends
        only on the task's name and `seed`. Up to rounding, a smaller limit keeps a subset of the
        rows of a larger one in each class. If the score is of groups of rows, whole groups are
        drawn, not stratified.

        Raises a DataError if a limit of all rows is smaller than the number of classes; with
        `every_class`, the limit is then that number.
        """
        if scored_by_class is None:
            scored_by_class = by_class
        splits = (
            ("train", self.train, limit, by_class),
            ("validation", self.validation, scored or limit, scored_by_class),
            ("tuning", self.tuning, scored or limit, scored_by_class),
        )
        limited: dict[str, Any] = {}
        for split, rows, most, in_classes in splits:
            if most is None or rows is None:
                continue
            classes = len(np.unique(self.train.labels)) if self.labels else 0
            if every_class and not in_classes:
                most = max(most, classes)
            if not in_classes and most < classes:
                key = "limit" if most == limit else "scored_limit"
                raise DataError(
                    f"task {self.name!r}: a limit of {most} is less than the number of classes, "
                    f"{classes}. Use {named(key, classes)} or more (key `{key}` in [protocol])."
                )
            rng = numpy_stream("limit", self.name, split, seed)
            if rows.groups is not None and self.metrics[0] in self.group_metrics:
                most *= max(1, classes) if in_classes else 1
                limited[split] = rows.take(whole_groups(rows.groups, most, rng))
            elif in_classes and classes:
                parts = [np.flatnonzero(rows.labels == c) for c in np.unique(rows.labels)]
                sample = np.concatenate([np.sort(rng.permutation(part)[:most]) for part in parts])
                limited[split] = rows.take(np.sort(sample))
            else:
                limited[split] = rows.sample(most, rng)
        return replace(self, **limited) if limited else self

    def redrawn(self, rows: Rows, *seeds: int) -> Self:
        """Return the task with as many training rows as it has, drawn from `rows`, stratified.

        `rows` are all training rows; those of the tuning split and of its groups are not drawn.
        """
        if self.tuning is not None:
            rows = rows.where(~np.isin(rows.index, self.tuning.index))
            if rows.groups is not None and self.tuning.groups is not None:
                rows = rows.where(~np.isin(rows.groups, self.tuning.groups))
        rng = numpy_stream("subset", self.name, *seeds)
        return replace(self, train=rows.sample(len(self.train), rng))

    def scored_by(self, metric: str | None) -> Self:
        """Return the task with `metric` as its score; None changes nothing.

        Raises a DataError for a metric that is not registered for this kind of task.
        """
        if metric is None:
            return self
        where = f"[protocol] task_metric of {self.name!r}"
        groups = self.train.groups is not None
        check_metrics(where, [metric], self.regression, free_text=self.free_text, groups=groups)
        return replace(self, metrics=tuple(dict.fromkeys((metric, *self.metrics))))

    @property
    def scored(self) -> Rows:
        """The rows that scores are computed on: the tuning split where there is one."""
        return self.validation if self.tuning is None else self.tuning

    def with_tuning(self, fraction: float, seed: int = 0) -> Self:
        """Return the task with `fraction` of its training rows as the tuning split.

        `hold_out` draws them. Raises a DataError if one of the two splits would be empty.
        """
        where = f"task {self.name!r}: a tuning split of {fraction:g}"
        rng = numpy_stream("tuning", self.name, seed)
        train, tuning = hold_out(self.train, fraction, rng, where)
        return replace(self, train=train, tuning=tuning)


def hold_out(
    rows: Rows, fraction: float, rng: np.random.Generator, where: str
) -> tuple[Rows, Rows]:
    """Return the remaining rows and a `fraction` of `rows`; neither may be empty.

    They are stratified, or whole groups of rows where there are groups.
    """
    count = round(len(rows) * fraction)
    if 0 < count < len(rows):
        groups = rows.groups
        drawn = rows.drawn(count, rng) if groups is None else whole_groups(groups, count, rng)
        if len(rest := np.setdiff1d(np.arange(len(rows)), drawn)):
            return rows.take(rest), rows.take(drawn)
    raise DataError(f"{where} of {len(rows)} rows leaves one side empty. Use another fraction.")
