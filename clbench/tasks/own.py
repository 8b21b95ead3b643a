"""Tasks from a user's own files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from clbench.errors import DataError
from clbench.messages import describe_type
from clbench.seeds import numpy_stream
from clbench.tasks.files import FileTaskSpec
from clbench.tasks.labels import check_filled, class_names, class_numbers, targets
from clbench.tasks.tables import Table, read_bytes, read_table
from clbench.tasks.task import Rows, Task, stratified


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
    labels = spec.labels or ([] if spec.regression else class_names(table, spec, where))
    train = _rows(table, spec, labels, where)
    if spec.validation is not None:
        where = f"task {name!r}, validation = {spec.validation!r}"
        path = _path(base, spec.validation)
        content = read_bytes(path, where)
        if path.samefile(train_path):
            raise DataError(
                f"{where}: is the file of train = {spec.train!r}. Scores on rows that were trained "
                "on mean nothing: give another file, or validation_fraction."
            )
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
    kept = spec.model_dump(exclude={"train", "validation", "format", "separator"})
    if spec.separator is not None:
        kept["separator"] = spec.separator
    paths = {"train": spec.train, "validation": spec.validation}
    kept["formats"] = {key: spec.format_of(path) for key, path in paths.items() if path}
    return kept


def _table(content: bytes, spec: FileTaskSpec, path: str, where: str) -> Table:
    wanted = [*(("text", column) for column in spec.text), ("label", spec.label)]
    return read_table(
        content,
        wanted,
        spec.format_of(path),
        where,
        separator=spec.separator_of(path),
        quotes=spec.quotes,
    )


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


def _rows(table: Table, spec: FileTaskSpec, labels: list[str], where: str) -> Rows:
    texts = [_texts(table, column, where) for column in spec.text]
    second = texts[1] if len(texts) == 2 else None
    if spec.regression:
        return Rows.of(texts[0], second, targets(table, spec, where), regression=True)
    return Rows.of(texts[0], second, class_numbers(table, spec, labels, where))


def _texts(table: Table, column: str, where: str) -> list[str]:
    check_filled(table, column, "a text", where)
    cells = table.columns[column]
    for row, cell in enumerate(cells):
        if not isinstance(cell, str):
            raise DataError(
                f"{where}: column {column!r} (key 'text') holds {cell!r} on {table.place(row)}, "
                f"{describe_type(cell)} and no text. Name a column of texts."
            )
        if not cell.isprintable() and any("\ud800" <= char <= "\udfff" for char in cell):
            raise DataError(
                f"{where}: the text on {table.place(row)} holds half of a surrogate pair, "
                "which is no character. Mend the file's encoding."
            )
    return cells
