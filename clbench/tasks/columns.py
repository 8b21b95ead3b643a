"""Columns of one split of a file or dataset, made into rows: texts, classes and targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clbench.errors import DataError, did_you_mean
from clbench.messages import describe_type, format_value
from clbench.tasks.spec import ColumnsSpec, label_name
from clbench.tasks.task import Rows

MANY_CLASSES = 20
"""From here on, more classes than half the rows count as a mistake."""


@dataclass(frozen=True)
class Columns:
    """The columns of one split that a task needs.

    Attributes
    ----------
    where
        Task and file or split, the beginning of messages.
    spec
        What the columns mean.
    cells
        Cells by column, each of n values; None where a cell is missing.
    lines
        Line on which each row starts, counted from 1; empty where there are no lines.
    """

    where: str
    spec: ColumnsSpec
    cells: Mapping[str, Sequence[Any]]
    lines: Sequence[int] = ()

    def rows(self, classes: Sequence[str], *, coded: bool = False) -> Rows:
        """Return the rows.

        Parameters
        ----------
        classes
            Names of the classes; none for regression.
        coded
            Whether whole numbers in the label column are positions in `classes`.

        Raises
        ------
        DataError
            Naming the first row with a missing or unusable text or label.
        """
        texts = [self._texts(column) for column in self.spec.text]
        second = texts[1] if len(texts) == 2 else None
        labels: list[Any] = self._labels()
        if self.spec.regression:
            labels = [self._target(row, cell) for row, cell in enumerate(labels)]
        elif not (coded and all(type(cell) is int for cell in labels)):
            numbers = {name: number for number, name in enumerate(classes)}
            labels = [self._number(row, cell, numbers) for row, cell in enumerate(labels)]
        return Rows.of(texts[0], second, labels, regression=self.spec.regression)

    def class_names(self) -> list[str]:
        """Return the labels that occur, sorted as whole numbers if all are, else as text.

        Raises
        ------
        DataError
            If they cannot be classes, or one is written in two ways.
        """
        cells, column = self._labels(), f"column {self.spec.label!r} (key 'label')"
        spellings: dict[Any, tuple[tuple[bool, str], int]] = {}
        for row, cell in enumerate(cells):
            name = label_name(cell)
            spelling, number = (isinstance(cell, str), name), _as_number(name)
            key = name if number is None or math.isnan(number) else number
            known, before = spellings.setdefault(key, (spelling, row))
            if known != spelling:
                raise DataError(
                    f"{self.where}: {column} has {format_value(cells[before])} on "
                    f"{self._place(before)} and {format_value(cell)} on {self._place(row)}. Write "
                    "a label in one way, or list the classes in `labels`."
                )
        names = [name for (_, name), _ in spellings.values()]
        if len(names) > MANY_CLASSES and 2 * len(names) > len(cells):
            raise DataError(
                f"{self.where}: {column} has {len(names)} different values in {len(cells)} rows, "
                "too many for classes. Name another column, set regression = true for numbers "
                "to predict, or list the classes in `labels`."
            )
        if len(names) == 1:
            hint = ", as in an unlabelled test split" if names == ["-1"] else ""
            raise DataError(
                f"{self.where}: every label in {column} is {names[0]!r}{hint}. A task needs at "
                "least two classes."
            )
        try:
            return sorted(names, key=int)
        except ValueError:
            return sorted(names)

    def _place(self, row: int) -> str:
        return f"line {self.lines[row]}" if self.lines else f"row {row} (counted from 0)"

    def _check_filled(self, column: str, what: str) -> None:
        missing = [row for row, cell in enumerate(self.cells[column]) if label_name(cell) is None]
        if missing:
            are = "row is" if len(missing) == 1 else "rows are"
            raise DataError(
                f"{self.where}: {len(missing)} {are} without a {what} in column {column!r}, the "
                f"first on {self._place(missing[0])}. Fill them in or remove these rows."
            )

    def _texts(self, column: str) -> list[str]:
        self._check_filled(column, "text")
        texts = list(self.cells[column])
        for row, cell in enumerate(texts):
            if not isinstance(cell, str):
                raise DataError(
                    f"{self.where}: column {column!r} (key 'text') holds {format_value(cell)} on "
                    f"{self._place(row)}, {describe_type(cell)}. Name a column of texts."
                )
            try:
                cell.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{self.where}: the text on {self._place(row)} contains half of a surrogate "
                    "pair. Fix the encoding of the file."
                ) from error
        return texts

    def _labels(self) -> list[Any]:
        self._check_filled(self.spec.label, "label")
        labels = list(self.cells[self.spec.label])
        for row, cell in enumerate(labels):
            if isinstance(cell, (list, dict, bytes)):
                raise DataError(
                    f"{self.where}: column {self.spec.label!r} (key 'label') holds "
                    f"{describe_type(cell)} on {self._place(row)}. A label must be a text or a "
                    "number."
                )
        return labels

    def _number(self, row: int, cell: Any, numbers: Mapping[str, int]) -> int:
        name = label_name(cell)
        if name not in numbers:
            known = "`labels`" if self.spec.labels else "those of the training rows"
            raise DataError(
                f"{self.where}: label {name!r} on {self._place(row)} is not among {known}."
                f"{did_you_mean(name, numbers)}"
            )
        return numbers[name]

    def _target(self, row: int, cell: Any) -> float:
        number = None if isinstance(cell, bool) else _as_number(cell)
        if number is None or not math.isfinite(number):
            raise DataError(
                f"{self.where}: {format_value(cell)} in column {self.spec.label!r} on "
                f"{self._place(row)} is not a finite number, which regression = true needs."
            )
        return number


def _as_number(label: Any) -> float | None:
    try:
        return float(label)
    except (TypeError, ValueError):
        return None
