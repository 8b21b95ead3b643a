"""Turn the columns of a file or dataset into rows: texts, and classes or targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from clbench.core.errors import (
    DataError,
    count,
    describe_type,
    did_you_mean,
    format_value,
    join_names,
)
from clbench.tasks.spec import ColumnsSpec, label_name
from clbench.tasks.task import Rows

LARGEST_TARGET = 1e38
"""Largest absolute value of a target; float32 holds no number beyond 3.4e38."""
MANY_CLASSES = 20
"""More classes than this, and than half the rows, count as a mistake."""


@dataclass(frozen=True)
class Columns:
    """The columns of one split that a task needs.

    Attributes
    ----------
    where
        Task and file or split, with which messages begin. Rows in messages count from 0.
    cells
        Values by column, each of one type; None for a missing cell.
    """

    where: str
    spec: ColumnsSpec
    cells: Mapping[str, Sequence[Any]]

    @cached_property
    def _of_classes(self) -> list[int]:
        """The rows of all classes but those in `without`."""
        labels = self.cells[self.spec.label]
        if not self.spec.without:
            return list(range(len(labels)))
        rows = [
            row for row, label in enumerate(labels) if label_name(label) not in self.spec.without
        ]
        if not rows:
            raise DataError(f"{self.where}: every row is of a class in `without`.")
        return rows

    @cached_property
    def positions(self) -> list[int]:
        """The rows to read; with `skip_blank` those that have every text."""
        rows = self._of_classes
        if self.spec.skip_blank:
            texts = [*self.spec.texts, *([column] for column in self.spec.choices or [])]
            rows = [
                row
                for row in rows
                if all(any(label_name(self.cells[c][row]) for c in joined) for joined in texts)
            ]
            if not rows:
                raise DataError(f"{self.where}: no row has a text.")
        return rows

    @property
    def blank(self) -> int:
        """The number of rows that are left out for want of a text."""
        return len(self._of_classes) - len(self.positions)

    def rows(self, classes: Sequence[str], *, coded: bool = False) -> Rows:
        """Return the rows; if `coded`, labels that are whole numbers are positions in `classes`."""
        texts = list(map(self._joined, self.spec.texts))
        choices = tuple(self._filled(column, str) for column in self.spec.choices or [])
        targets: list[str] | None = None
        labels = self._filled(self.spec.label, (str, int, float))
        if self.spec.target:
            targets, labels = [str(label) for label in labels], [0] * len(labels)
        elif self.spec.regression:
            labels = list(map(self._target, self.positions, labels))
        elif not (coded and labels and type(labels[0]) is int):
            numbers = {name: number for number, name in enumerate(classes)}
            number = partial(self._number, numbers=numbers)
            labels = list(map(number, self.positions, labels))
        second = texts[1] if len(texts) == 2 else None
        rows = Rows.of(texts[0], second, labels, regression=self.spec.regression)
        index = np.asarray(self.positions, dtype=np.int64)
        groups = self._groups()
        return replace(rows, index=index, choices=choices, groups=groups, targets=targets)

    def by_row(self, column: str) -> dict[int, str]:
        """Return the cells of a column as names, by row; rows with an empty cell are missing."""
        cells = self.cells[column]
        names = {row: label_name(cells[row]) for row in self.positions}
        return {row: name for row, name in names.items() if name is not None}

    def _joined(self, columns: Sequence[str]) -> list[str]:
        """Return the texts of columns joined with blanks; one of them must be filled."""
        if len(columns) == 1:
            return self._filled(columns[0], str)
        cells = [self.cells[column] for column in columns]
        texts = [
            " ".join(cell[row] for cell in cells if label_name(cell[row])) for row in self.positions
        ]
        if "" in texts:
            row = self.positions[texts.index("")]
            raise DataError(
                f"{self.where}: columns {join_names(columns)} are all empty in row {row} (counted "
                "from 0). Fill one in, remove such rows, or leave them out with skip_blank = true."
            )
        return texts

    def _groups(self) -> npt.NDArray[np.int64] | None:
        """Return a number for each row, equal where the columns in `group` have equal cells."""
        if not self.spec.group:
            return None
        numbers: dict[tuple[Any, ...], int] = {}
        cells = [self.cells[column] for column in self.spec.group]
        keys = [tuple(str(cell[row]) for cell in cells) for row in self.positions]
        return np.asarray([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

    def class_names(self) -> list[str]:
        """Return the labels that occur, sorted as whole numbers if all are, else as text."""
        labels = [label_name(cell) for cell in self._filled(self.spec.label, (str, int, float))]
        where = f"{self.where}: column {self.spec.label!r} (key 'label')"
        first_rows = dict(zip(labels[::-1], self.positions[::-1], strict=True))
        names = sorted(first_rows)
        spellings: dict[float, str] = {}
        for name in names:
            other = spellings.setdefault(_as_number(name), name)
            if other != name:
                raise DataError(
                    f"{where} has {other!r} on row {first_rows[other]} and {name!r} on row "
                    f"{first_rows[name]} (counted from 0). Write each number in one way, or list "
                    "the classes in `labels`."
                )
        if len(names) > MANY_CLASSES and 2 * len(names) > len(labels):
            raise DataError(
                f"{where} has {len(names)} different values in {len(labels)} rows, too many for "
                "classes. Name another column, set regression = true for numbers to predict, or "
                "list the classes in `labels`."
            )
        if len(names) == 1:
            hint = " (-1 marks an unlabelled test split)" if names == ["-1"] else ""
            raise DataError(
                f"{where} has the label {names[0]!r}{hint} on every row. A task needs at least "
                "two classes."
            )
        try:
            return sorted(names, key=int)
        except ValueError:
            return names

    def _filled(self, column: str, types: type | tuple[type, ...]) -> list[Any]:
        """Return the cells of a column; a DataError if one is missing or not of `types`."""
        cells = [self.cells[column][row] for row in self.positions]
        missing = [
            row for row, cell in zip(self.positions, cells, strict=True) if label_name(cell) is None
        ]
        if missing:
            is_text = column in [*chain(*self.spec.texts), *(self.spec.choices or [])]
            skip = ", or leave them out with skip_blank = true" if is_text else ""
            raise DataError(
                f"{self.where}: column {column!r} is empty in {len(missing)} of "
                f"{count(len(cells), 'row')}, first in row {missing[0]} (counted from 0). Fill it "
                f"in or remove such rows{skip}."
            )
        for row, cell in zip(self.positions, cells, strict=True):
            if not isinstance(cell, types):
                needed = "texts" if types is str else "labels, text or numbers"
                raise DataError(
                    f"{self.where}: column {column!r} has {format_value(cell)}, "
                    f"{describe_type(cell)}, on row {row} (counted from 0). Name a column of "
                    f"{needed}."
                )
        return cells

    def _number(self, row: int, cell: Any, numbers: Mapping[str, int]) -> int:
        name = label_name(cell)
        if name not in numbers:
            allowed = "`labels`" if self.spec.labels else "those of the training rows"
            raise DataError(
                f"{self.where}: label {name!r} on row {row} (counted from 0) is not among "
                f"{allowed}.{did_you_mean(name, numbers)}"
            )
        return numbers[name]

    def _target(self, row: int, cell: Any) -> float:
        number = math.nan if isinstance(cell, bool) else _as_number(cell)
        if isinstance(number, float) and abs(number) <= LARGEST_TARGET:
            return number
        large = isinstance(number, float) and math.isfinite(number)
        problem = "is too large" if large else "is not a finite number"
        raise DataError(
            f"{self.where}: {format_value(cell)} in column {self.spec.label!r} on row {row} "
            f"(counted from 0) {problem}. With regression = true, give numbers up to 1e38."
        )


def check_columns(columns: Sequence[str], header: Sequence[str], where: str) -> None:
    """Raise a DataError unless each column is in `header` once; `where` begins the message."""
    for column in columns:
        if (times := header.count(column)) != 1:
            if times:
                raise DataError(f"{where}: {times} columns are called {column!r}. Rename one.")
            hint = did_you_mean(column, header)
            raise DataError(f"{where}: there is no column {column!r}.{hint}")


def _as_number(label: Any) -> Any:
    """Return a label as a number if it is a finite one, else unchanged."""
    try:
        number = float(label)
    except (TypeError, ValueError):
        return label
    return number if math.isfinite(number) else label
