"""The label column of a user's own file: which classes there are, and which cells are none."""

from __future__ import annotations

import math
from typing import Any

from clbench.errors import DataError, did_you_mean
from clbench.messages import describe_type, format_value
from clbench.tasks.files import FileTaskSpec, label_name
from clbench.tasks.tables import Table

MANY_CLASSES = 20
"""From this many classes on, more classes than half the rows are taken for a mistake."""


def class_names(table: Table, spec: FileTaskSpec, where: str) -> list[str]:
    """The labels that occur, sorted as whole numbers where all are, else as text."""
    cells = label_cells(table, spec, where)
    names = {label_name(value) for value in cells}
    if len(names) > MANY_CLASSES and 2 * len(names) > len(table.columns[spec.label]):
        raise DataError(
            f"{where}: column {spec.label!r} (key 'label') has {len(names)} different values in "
            f"{len(table.columns[spec.label])} rows, too many for classes. Name another column, "
            "set regression = true if they are numbers to predict, or list them in `labels`."
        )
    if names == {"-1"}:
        raise DataError(
            f"{where}: every label in column {spec.label!r} is -1, as in an unlabelled test "
            "split. Use a file with labels."
        )
    if len(names) == 1:
        raise DataError(
            f"{where}: every label in column {spec.label!r} is {names.pop()!r}. Use a file with "
            "rows of at least two classes."
        )
    _one_spelling(table, cells, spec, where)
    try:
        return sorted(names, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(names)


def class_numbers(table: Table, spec: FileTaskSpec, labels: list[str], where: str) -> list[int]:
    """The number of each row's class.

    Raises
    ------
    DataError
        If a label is none of `labels`.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    found = []
    for row, cell in enumerate(label_cells(table, spec, where)):
        label = label_name(cell)
        if label not in numbers:
            raise DataError(
                f"{where}: label {label!r} on {table.place(row)} {_stranger(label, labels, spec)}"
            )
        found.append(numbers[label])
    return found


def label_cells(table: Table, spec: FileTaskSpec, where: str) -> list[Any]:
    """The cells of the label column, one a row, none missing and all of one kind.

    Raises
    ------
    DataError
        If some are not.
    """
    cells = table.columns[spec.label]
    check_filled(table, spec.label, "a label", where)
    for row, cell in enumerate(cells):
        if isinstance(cell, (list, dict, bytes)):
            raise DataError(
                f"{where}: column {spec.label!r} (key 'label') holds {describe_type(cell)} on "
                f"{table.place(row)}. A label must be a text or a number."
            )
    _one_kind(table, cells, spec, where)
    return cells


def targets(table: Table, spec: FileTaskSpec, where: str) -> list[float]:
    """The number of each row that a regression task is to predict.

    Raises
    ------
    DataError
        If a cell is no finite number.
    """
    found = []
    for row, cell in enumerate(label_cells(table, spec, where)):
        value = None if isinstance(cell, bool) else _number(cell)
        if value is None or not math.isfinite(value):
            raise DataError(
                f"{where}: {format_value(cell)} in column {spec.label!r} on {table.place(row)} is "
                "no finite number, as regression = true needs."
            )
        found.append(value)
    return found


def check_filled(table: Table, column: str, what: str, where: str) -> None:
    """Refuse a column with missing cells; `what` says what they lack."""
    empty = [row for row, cell in enumerate(table.columns[column]) if _missing(cell)]
    if empty:
        are = "row is" if len(empty) == 1 else "rows are"
        raise DataError(
            f"{where}: {len(empty)} {are} without {what} in column {column!r}, the first on "
            f"{table.place(empty[0])}. Fill them in or take these rows out."
        )


def _missing(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())


def _stranger(label: Any, labels: list[str], spec: FileTaskSpec) -> str:
    """What is wrong with a label that is not among the known ones, and what to do."""
    same = [other for other in labels if _number(label) == _number(other) is not None]
    if same:
        place = "`labels`" if spec.labels else "the training file"
        return f"is written {same[0]!r} in {place}. Write it the same way in both."
    known = "`labels`" if spec.labels else "those of the training file"
    return f"is not among {known}.{did_you_mean(str(label), labels)}"


def _one_spelling(table: Table, cells: list[Any], spec: FileTaskSpec, where: str) -> None:
    """Refuse two labels that are one number, such as 1 and 1.0: they would be two classes."""
    first: dict[float, int] = {}
    for row, cell in enumerate(cells):
        number = _number(label_name(cell))
        if number is None:
            continue
        before = first.setdefault(number, row)
        if label_name(cells[before]) != label_name(cell):
            raise DataError(
                f"{where}: column {spec.label!r} (key 'label') has {label_name(cells[before])!r} "
                f"on {table.place(before)} and {label_name(cell)!r} on {table.place(row)}, two "
                "ways to write one number. Write it one way, or list both in `labels` if they "
                "are two classes."
            )


def _one_kind(table: Table, cells: list[Any], spec: FileTaskSpec, where: str) -> None:
    """Refuse labels of several types, such as 1 and "1": they would become one class."""
    first: dict[str, int] = {}
    for row, cell in enumerate(cells):
        kind = "a number" if describe_type(cell) == "a whole number" else describe_type(cell)
        first.setdefault(kind, row)
        if len(first) > 1:
            (other, before), (kind, row) = first.items()
            raise DataError(
                f"{where}: column {spec.label!r} (key 'label') holds {format_value(cells[before])} "
                f"({other}) on {table.place(before)} and {format_value(cells[row])} ({kind}) on "
                f"{table.place(row)}. Write all labels in one way."
            )


def _number(label: Any) -> float | None:
    try:
        return float(label)
    except (TypeError, ValueError):
        return None
