"""Tasks from a user's own files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from clbench.errors import DataError, did_you_mean
from clbench.seeds import numpy_stream
from clbench.tasks.files import FileTaskSpec, label_name
from clbench.tasks.tables import Table, read_bytes, read_table
from clbench.tasks.task import Rows, Task, stratified

MANY_CLASSES = 20
"""From this many classes on, more classes than half the rows are taken for a mistake."""


def load_own(name: str, spec: FileTaskSpec, base: Path) -> Task:
    """The task of a ``[task.NAME]`` table.

    Parameters
    ----------
    name
        NAME.
    spec
        The table.
    base
        Folder that its paths start from.

    Raises
    ------
    DataError
        If a file is missing, empty or broken, lacks a column, or has rows without a text
        or with a label that cannot be.
    """
    train_path = _path(base, spec.train)
    where = f"task {name!r}, train = {spec.train!r}"
    content = read_bytes(train_path, where)
    digests = {"train": _digest(content)}
    table = _table(content, spec, spec.train, where)
    labels = spec.labels or ([] if spec.regression else _class_names(table, spec, where))
    train = _rows(table, spec, labels, where)
    if spec.validation is not None:
        where = f"task {name!r}, validation = {spec.validation!r}"
        content = read_bytes(_path(base, spec.validation), where)
        digests["validation"] = _digest(content)
        validation = _rows(_table(content, spec, spec.validation, where), spec, labels, where)
    else:
        train, validation = _hold_out(name, spec, train)
    return Task(
        name,
        tuple(labels),
        spec.scores,
        train,
        validation,
        head=name,
        source={"files": digests, **_settings(spec)},
    )


def own_identity(name: str, spec: FileTaskSpec, base: Path) -> dict[str, Any]:
    """Digests of the files' content and the settings that decide how they are read."""
    paths = {"train": spec.train, "validation": spec.validation}
    digests = {
        key: _digest(read_bytes(_path(base, path), f"task {name!r}, {key} = {path!r}"))
        for key, path in paths.items()
        if path is not None
    }
    return {"files": digests, **_settings(spec)}


def _path(base: Path, path: str) -> Path:
    return base / Path(path).expanduser()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _settings(spec: FileTaskSpec) -> dict[str, Any]:
    kept = spec.model_dump(exclude={"train", "validation", "format"})
    paths = {"train": spec.train, "validation": spec.validation}
    kept["formats"] = {key: spec.format_of(path) for key, path in paths.items() if path}
    return kept


def _table(content: bytes, spec: FileTaskSpec, path: str, where: str) -> Table:
    wanted = [*(("text", column) for column in spec.text), ("label", spec.label)]
    return read_table(content, wanted, spec.format_of(path), spec.quotes, where)


def _hold_out(name: str, spec: FileTaskSpec, rows: Rows) -> tuple[Rows, Rows]:
    """(training rows, validation rows) out of one file, always the same ones."""
    assert spec.validation_fraction is not None
    count = round(len(rows) * spec.validation_fraction)
    if not 0 < count < len(rows):
        raise DataError(
            f"task {name!r}: validation_fraction = {spec.validation_fraction:g} of {len(rows)} "
            "rows leaves one side empty. Use more rows or another fraction."
        )
    held = stratified(rows.labels, count, numpy_stream("held out", name), spec.regression)
    kept = np.setdiff1d(np.arange(len(rows)), held)
    return rows.take(kept), rows.take(held)


def _class_names(table: Table, spec: FileTaskSpec, where: str) -> list[str]:
    """The labels that occur, sorted as whole numbers where all are, else as text."""
    names = {label_name(value) for value in _label_cells(table, spec, where)}
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
    try:
        return sorted(names, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(names)


def _rows(table: Table, spec: FileTaskSpec, labels: list[str], where: str) -> Rows:
    texts = [_texts(table, column, where) for column in spec.text]
    cells = _label_cells(table, spec, where)
    second = texts[1] if len(texts) == 2 else None
    if spec.regression:
        return Rows.of(texts[0], second, _targets(table, cells, spec, where), regression=True)
    numbers = {label: number for number, label in enumerate(labels)}
    found = []
    for row, cell in enumerate(cells):
        label = label_name(cell)
        if label not in numbers:
            origin = "`labels`" if spec.labels else "those of the training file"
            raise DataError(
                f"{where}: label {label!r} on {table.place(row)} is not among {origin}."
                f"{did_you_mean(str(label), labels)}"
            )
        found.append(numbers[label])
    return Rows.of(texts[0], second, found)


def _texts(table: Table, column: str, where: str) -> list[str]:
    cells = table.columns[column]
    empty = [row for row, cell in enumerate(cells) if _missing(cell)]
    if empty:
        raise DataError(
            f"{where}: {_count(empty, 'row')} without a text in column {column!r}, the first "
            f"on {table.place(empty[0])}. Fill them in or take these rows out."
        )
    for row, cell in enumerate(cells):
        if not isinstance(cell, str):
            raise DataError(
                f"{where}: column {column!r} (key 'text') holds {cell!r} on {table.place(row)}, "
                f"a {type(cell).__name__} and not text. Name a column of texts."
            )
        if not cell.isprintable() and any("\ud800" <= char <= "\udfff" for char in cell):
            raise DataError(
                f"{where}: the text on {table.place(row)} holds half of a surrogate pair, "
                "which is no character. Mend the file's encoding."
            )
    return cells


def _label_cells(table: Table, spec: FileTaskSpec, where: str) -> list[Any]:
    cells = table.columns[spec.label]
    empty = [row for row, cell in enumerate(cells) if _missing(cell)]
    if empty:
        raise DataError(
            f"{where}: {_count(empty, 'row')} without a label in column {spec.label!r}, the "
            f"first on {table.place(empty[0])}. Fill them in or take these rows out."
        )
    for row, cell in enumerate(cells):
        if isinstance(cell, (list, dict, bytes)):
            raise DataError(
                f"{where}: column {spec.label!r} (key 'label') holds a {type(cell).__name__} on "
                f"{table.place(row)}. A label must be a text or a number."
            )
    return cells


def _targets(table: Table, cells: list[Any], spec: FileTaskSpec, where: str) -> list[float]:
    targets = []
    for row, cell in enumerate(cells):
        try:
            value = float(cell)
        except (TypeError, ValueError):
            value = np.nan
        if not np.isfinite(value):
            raise DataError(
                f"{where}: {cell!r} in column {spec.label!r} on {table.place(row)} is no "
                "finite number, as regression = true needs."
            )
        targets.append(value)
    return targets


def _missing(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())


def _count(rows: list[int], noun: str) -> str:
    return f"{len(rows)} {noun}{'s are' if len(rows) > 1 else ' is'}"
