"""Tasks in tables: their rows, texts and labels."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from clbench.core import errors
from clbench.core.seeds import numpy_stream
from clbench.tasks.metrics import check_metrics
from clbench.tasks.spec import SPLITS, FileTaskSpec, TableSpec, label_name
from clbench.tasks.task import Rows, Task, TaskSource, hold_out
from clbench.tasks.template import Template

LARGEST_TARGET = 1e38
"""Largest absolute value of a target; float32 holds no number beyond 3.4e38."""
UNLABELLED = " Unlabelled test splits have -1; name another split."
ONE_WAY = "Write each number in one way, or list the classes in `labels`."
MANY_CLASSES = 20
"""More classes than this, and than half the rows, count as a mistake."""


@dataclass(frozen=True)
class Table:
    """The columns of one split that a task needs.

    Attributes
    ----------
    where
        Task and file or split, with which messages begin.
    cells
        Values by column, each of one type; None for a missing cell.
    names
        Names of the classes that whole numbers as labels stand for, if they are known.
    line
        Returns the line of a text file on which a row begins, from 1; 0 if it is unknown.
    every_name
        Names of all classes, also of those in `without`, if the dataset declares them.
    """

    where: str
    spec: TableSpec
    cells: Mapping[str, Sequence[Any]]
    names: Sequence[str] | None = None
    line: Callable[[int], int] = lambda row: 0
    every_name: Sequence[str] = ()

    def at(self, row: int) -> str:
        """Return where a row is, as an editor counts lines, or without these from 0."""
        return f"line {line}" if (line := self.line(row)) else f"row {row} (counted from 0)"

    @cached_property
    def _of_classes(self) -> list[int]:
        """The rows of all classes but those in `without`."""
        labels, without = self.cells[self.spec.label], self.spec.without
        if not without:
            return list(range(len(labels)))
        rows = [row for row, label in enumerate(labels) if label_name(label) not in without]
        if not rows:
            raise errors.DataError(f"{self.where}: every row is of a class in `without`.")
        return rows

    @cached_property
    def positions(self) -> list[int]:
        """The rows to read; with `skip_blank` those that have every text."""
        rows, spec = self._of_classes, self.spec
        if spec.skip_blank:
            texts = [*spec.texts, *([column] for column in spec.choices or [])]
            rows = [
                row
                for row in rows
                if all(any(label_name(self.cells[c][row]) for c in joined) for joined in texts)
            ]
            if not rows:
                raise errors.DataError(f"{self.where}: no row has a text.")
        return rows

    @property
    def blank(self) -> int:
        """The number of rows that are left out for want of a text."""
        return len(self._of_classes) - len(self.positions)

    def rows(self, classes: Sequence[str]) -> Rows:
        """Return the rows, whose labels are positions in `classes`."""
        spec, targets = self.spec, None
        texts = list(map(self._texts, spec.texts))
        choices = tuple(self._texts([column]) for column in spec.choices or [])
        labels = self._labels()
        if spec.target:
            targets = [c if isinstance(c, str) else label_name(c) for c in labels]
            labels = [0] * len(labels)
        elif spec.regression:
            labels = list(map(self._target, self.positions, labels))
        elif not (self.names and labels and type(labels[0]) is int):
            labels = list(self._numbers(labels, classes))
        second = texts[1] if len(texts) == 2 else None
        rows = Rows.of(texts[0], second, labels, regression=spec.regression)
        index = np.asarray(self.positions, dtype=np.int64)
        return replace(rows, index=index, choices=choices, groups=self._groups(), targets=targets)

    def by_row(self, column: str) -> dict[int, str]:
        """Return the cells of a column as names, by row; rows with an empty cell are missing."""
        cells = self.cells[column]
        names = {row: label_name(cells[row]) for row in self.positions}
        return {row: name for row, name in names.items() if name is not None}

    def classes(self) -> list[str]:
        """Return the names of the classes: the given ones, or all labels that occur, sorted.

        They are sorted as whole numbers if all of them are, else as text.
        """
        if given := self.names or self.spec.labels:
            return list(given)
        labels = [label_name(cell) for cell in self._labels()]
        where = f"{self.where}: column {self.spec.label!r} (key 'label')"
        first_rows = dict(zip(labels[::-1], self.positions[::-1], strict=True))
        names, spellings = sorted(first_rows), dict[float | str, str]()
        for name in names:
            number = _as_number(name)
            other = spellings.setdefault(number if math.isfinite(number) else name, name)
            if other != name:
                raise errors.DataError(
                    f"{where} has {other!r} on {self.at(first_rows[other])} and {name!r} on "
                    f"{self.at(first_rows[name])}. {ONE_WAY}"
                )
        if len(names) > MANY_CLASSES and 2 * len(names) > len(labels):
            raise errors.DataError(
                f"{where} has {len(names)} different values in {len(labels)} rows, too many for "
                "classes. Name another column, set regression = true for numbers to predict, or "
                "list the classes in `labels`."
            )
        if len(names) == 1:
            raise errors.DataError(
                f"{where} has the label {names[0]!r} on every row. A task needs at least two "
                f"classes.{UNLABELLED if names == ['-1'] else ''}"
            )
        try:
            return names if "_" in "".join(names) else sorted(names, key=int)
        except ValueError:
            return names

    def _texts(self, columns: Sequence[str]) -> list[str]:
        """Return the texts of columns joined with blanks; one of them must be filled."""
        cells = [self._typed(column, "texts", str) for column in columns]
        texts = [" ".join(filter(label_name, row)) for row in zip(*cells, strict=True)]
        self._check_filled(texts, columns, ", or leave them out with skip_blank = true")
        return texts

    def _labels(self) -> list[Any]:
        labels = self._typed(self.spec.label, "labels, text or numbers", str, int, float)
        self._check_filled(labels, [self.spec.label])
        return labels

    def _typed(self, column: str, needed: str, *types: type) -> list[Any]:
        """Return the cells of a column; a DataError if one is not of `types`, nor missing."""
        cells = [self.cells[column][row] for row in self.positions]
        for row, cell in zip(self.positions, cells, strict=True):
            if not isinstance(cell, types) and cell is not None:
                raise errors.DataError(
                    f"{self.where}: column {column!r} has {errors.format_value(cell)}, "
                    f"{errors.describe_type(cell)}, on {self.at(row)}. Name a column of {needed}."
                )
        return cells

    def _check_filled(self, cells: Sequence[Any], columns: Sequence[str], skip: str = "") -> None:
        """Raise a DataError if a cell is missing, or blank."""
        pairs = zip(self.positions, cells, strict=True)
        if missing := [row for row, cell in pairs if label_name(cell) is None]:
            single = f"column {columns[0]!r} is"
            what = single if len(columns) == 1 else f"columns {errors.join_names(columns)} are all"
            raise errors.DataError(
                f"{self.where}: {what} empty in {len(missing)} of "
                f"{errors.count(len(cells), 'row')}, first on {self.at(missing[0])}. Fill it in or "
                f"remove such rows{skip}."
            )

    def _groups(self) -> np.typing.NDArray[np.int64] | None:
        """Return a number for each row, equal where the columns in `group` have equal cells."""
        if not self.spec.group:
            return None
        numbers: dict[tuple[str, ...], int] = {}
        cells = [self.cells[column] for column in self.spec.group]
        keys = [tuple(str(cell[row]) for cell in cells) for row in self.positions]
        return np.asarray([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

    def _numbers(self, labels: Sequence[Any], classes: Sequence[str]) -> Iterator[int]:
        """Yield the position of each label in `classes`."""
        numbers = {name: number for number, name in enumerate(classes)}
        for row, name in zip(self.positions, map(label_name, labels), strict=True):
            if name not in numbers:
                allowed = "`labels`" if self.spec.labels else "those of the training rows"
                hint = UNLABELLED if name == "-1" else errors.did_you_mean(name, numbers)
                raise errors.DataError(
                    f"{self.where}: label {name!r} on {self.at(row)} is not among {allowed}.{hint}"
                )
            yield numbers[name]

    def _target(self, row: int, cell: Any) -> float:
        number = math.nan if isinstance(cell, bool) else _as_number(cell)
        if not abs(number) <= LARGEST_TARGET:
            raise errors.DataError(
                f"{self.where}: {errors.format_value(cell)} in column {self.spec.label!r} on "
                f"{self.at(row)} is not a number up to 1e38, as regression = true needs."
            )
        return number


def check_columns(columns: Sequence[str], header: Sequence[str], where: str) -> None:
    """Raise a DataError unless each column is in `header` once; `where` begins the message."""
    for column in columns:
        if (times := header.count(column)) != 1:
            if times:
                raise errors.DataError(
                    f"{where}: {times} columns are called {column!r}. Rename one."
                )
            hint = errors.did_you_mean(column, header)
            raise errors.DataError(f"{where}: there is no column {column!r}.{hint}")


def _as_number(label: Any) -> float:
    """Return a label as a number; NaN if it is none. Python also reads 1_0 as a number."""
    try:
        return math.nan if "_" in str(label) else float(label)
    except (TypeError, ValueError):
        return math.nan


@dataclass(frozen=True)
class TableTask:
    """The loader of a task in tables, which subclasses read."""

    name: str
    spec: TableSpec

    def tables(self, source: TaskSource, *more: str) -> dict[str, Table]:
        """Return the tables of the splits, with the columns of the task and `more`."""
        raise NotImplementedError

    def origin(self, source: TaskSource) -> dict[str, Any]:
        """Return where the rows come from, and the settings that decide them."""
        raise NotImplementedError

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics; the first is the score."""
        return self.spec.scores

    def __call__(self, source: TaskSource) -> Task:
        """Return the task; raise a DataError if a table is missing or invalid."""
        spec, tables = self.spec, self.tables(source)
        self.check_without(tables.values())
        classes = tables["train"].classes() if spec.has_classes else []
        rows = {split: table.rows(classes) for split, table in tables.items()}
        blank = {split: table.blank for split, table in tables.items()}
        if isinstance(spec, FileTaskSpec) and (fraction := spec.validation_fraction) is not None:
            where = f"task {self.name!r}: validation_fraction = {fraction:g}"
            rng = numpy_stream("held out", self.name)
            rows["train"], rows["validation"] = hold_out(rows["train"], fraction, rng, where)
        return Task(
            self.name,
            tuple(classes),
            self.metrics,
            rows["train"],
            rows["validation"],
            head=self.name,
            source={**self.identity(source), **({"blank": blank} if spec.skip_blank else {})},
            template=spec.template(classes, f"task {self.name!r}: "),
        )

    def check_without(self, tables: Collection[Table]) -> None:
        """Raise a DataError if no table has a class that `without` names."""
        if not self.spec.without:
            return
        known = {name for table in tables for name in table.every_name}
        for table in tables:
            known.update(filter(None, map(label_name, table.cells[self.spec.label])))
        for name in self.spec.without:
            if name not in known:
                raise errors.DataError(
                    f"task {self.name!r}, without: no row is of the class {name!r}."
                    f"{errors.did_you_mean(name, known)}"
                )

    def column(self, source: TaskSource, name: str) -> dict[str, dict[int, str]]:
        """Return the cells of a column by split and `Rows.index`."""
        tables = self.tables(source, name)
        return {split: tables.get(split, tables["train"]).by_row(name) for split in SPLITS}

    def template(self) -> Template:
        """Return the template of prompts and answers, as far as it is known without rows."""
        return self.spec.template(self.spec.labels or [])

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Return what decides the rows; raise a DataError for an unknown metric."""
        where, spec = f"[task.{self.name}] metrics", self.spec
        check_metrics(where, self.metrics, spec.regression, free_text=bool(spec.target))
        return self.origin(source)
