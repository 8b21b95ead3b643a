"""Tasks in CSV, TSV, JSON Lines and Parquet files, read strictly: an error names its line."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.errors import DataError, did_you_mean
from clbench.messages import count, describe_type
from clbench.seeds import numpy_stream
from clbench.tasks.columns import Columns
from clbench.tasks.metrics import check_metrics
from clbench.tasks.spec import SUFFIXES, FileTaskSpec, Split
from clbench.tasks.task import Task, hold_out

if TYPE_CHECKING:
    from clbench.tasks.registry import TaskSource


@dataclass(frozen=True)
class FileTask:
    """The loader of a ``[task.NAME]`` table of files.

    Attributes
    ----------
    name
        NAME.
    spec
        The table.
    """

    name: str
    spec: FileTaskSpec

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics; the first is the score."""
        return self.spec.scores

    def __call__(self, source: TaskSource) -> Task:
        """Read the files.

        Raises
        ------
        DataError
            If a file is missing, empty or broken, lacks a column, or has rows without a text
            or with a label that cannot be.
        """
        spec, paths = self.spec, self.spec.paths
        table = self._read(source.base, "train")
        labels = spec.labels or ([] if spec.regression else table.class_names())
        train = table.rows(labels)
        if spec.validation_fraction is not None:
            where = f"task {self.name!r}: validation_fraction = {spec.validation_fraction:g}"
            rng = numpy_stream("held out", self.name)
            train, validation = hold_out(
                train, spec.validation_fraction, rng, spec.regression, where
            )
        else:
            if _path(source.base, paths["train"]).samefile(_path(source.base, paths["validation"])):
                raise DataError(
                    f"task {self.name!r}: train and validation are the same file. Give another "
                    "file, or validation_fraction = 0.1 to hold out rows."
                )
            validation = self._read(source.base, "validation").rows(labels)
        return Task(
            self.name,
            tuple(labels),
            self.metrics,
            train,
            validation,
            head=self.name,
            source=self.identity(source),
        )

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Return digests of the files and the settings that decide how they are read."""
        check_metrics(f"[task.{self.name}] metrics", self.metrics, self.spec.regression)
        settings = self.spec.model_dump(exclude={"train", "validation", "format", "separator"})
        if self.spec.separator is not None:
            settings["separator"] = self.spec.separator
        contents = {split: self._content(source.base, split) for split in self.spec.paths}
        return {
            "files": {
                split: hashlib.blake2b(content, digest_size=16).hexdigest()
                for split, content in contents.items()
            },
            "formats": {
                split: self.spec.format_of(path) for split, path in self.spec.paths.items()
            },
            **settings,
        }

    def _where(self, split: Split) -> str:
        return f"task {self.name!r}, {split} = {self.spec.paths[split]!r}"

    def _content(self, base: Path, split: Split) -> bytes:
        path = _path(base, self.spec.paths[split])
        try:
            content = path.read_bytes()
        except OSError as error:
            names = [other.name for other in path.parent.glob("*") if other.suffix in SUFFIXES]
            near = did_you_mean(path.name, names) if names and not path.exists() else ""
            raise DataError(
                f"{self._where(split)}: {path} cannot be read: {error.strerror}.{near}"
            ) from error
        if not content.strip():
            raise DataError(f"{self._where(split)}: {path} is empty.")
        return content

    def _read(self, base: Path, split: Split) -> Columns:
        spec, where = self.spec, self._where(split)
        content, kind = self._content(base, split), spec.format_of(spec.paths[split])
        columns = [*spec.text, spec.label]
        lines: list[int] = []
        if kind == "parquet":
            cells = read_parquet(content, columns, where)
        elif kind == "jsonl":
            cells, lines = _read_json_lines(_decode(content, where), columns, where)
        else:
            separator = spec.separator or ("\t" if kind == "tsv" else ",")
            text = _decode(content, where)
            cells, lines = _read_delimited(text, columns, separator, spec.quotes, where)
        if not cells[spec.label]:
            raise DataError(f"{where}: there are no rows in the file.")
        return Columns(where, spec, cells, lines)


def read_parquet(source: bytes | Path, columns: Sequence[str], where: str) -> dict[str, list[Any]]:
    """Return the cells of columns of a Parquet file.

    Raises
    ------
    DataError
        If the file is broken or lacks a column; `where` begins the message.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(source) if isinstance(source, bytes) else source)
        check_columns(columns, file.schema_arrow.names, where)
        table = file.read(columns=list(columns))
        return {column: table.column(column).to_pylist() for column in columns}
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where}: not a complete Parquet file ({reason}).") from error


def check_columns(columns: Sequence[str], header: Sequence[str], where: str) -> None:
    """Check that each column is in `header` once.

    Raises
    ------
    DataError
        Naming the columns that exist.
    """
    for column in columns:
        if (times := header.count(column)) != 1:
            problem = "there is no column" if not times else f"{times} columns are called"
            raise DataError(f"{where}: {problem} {column!r}.{did_you_mean(column, header)}")


def _path(base: Path, path: str) -> Path:
    return base / Path(path).expanduser()


def _decode(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{where}: line {line} is not UTF-8 (byte 0x{content[error.start]:02x}). Save the "
            "file as UTF-8."
        ) from error


def _read_delimited(
    text: str, columns: Sequence[str], separator: str, quotes: bool, where: str
) -> tuple[dict[str, list[Any]], list[int]]:
    """Return cells and line numbers; pandas would fill short lines and join quoted ones."""
    csv.field_size_limit(sys.maxsize)
    quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, strict=True
    )
    hint = " Set quotes = false if quotes are plain characters in this file." if quotes else ""
    rows, lines, start = [], [], 1
    try:
        header = next(reader)
        names = f"{where}: the first line must name the columns, separated by {separator!r}"
        check_columns(columns, header, names)
        start = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                raise DataError(
                    f"{where}: line {start} has {count(len(row), 'field')}, the header has "
                    f"{len(header)}. Put quotes around a text that contains the separator.{hint}"
                )
            if separator == "\t" and reader.line_num > start:
                raise DataError(
                    f"{where}: a quoted field runs from line {start} to line {reader.line_num}, "
                    f"which TSV does not allow.{hint}"
                )
            if row:
                rows.append(row)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{where}: line {start} is broken: {error}.{hint}") from error
    cells = {column: [row[header.index(column)] for row in rows] for column in columns}
    return cells, lines


def _read_json_lines(
    text: str, columns: Sequence[str], where: str
) -> tuple[dict[str, list[Any]], list[int]]:
    """Return cells and line numbers; pandas would change types and name no line."""
    records: dict[int, dict[str, Any]] = {}
    # str.splitlines would also cut at U+2028, which is legal inside a JSON text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"{where}: line {number} is not valid JSON: {error}. Write one object a line."
            ) from error
        if not isinstance(record, dict):
            raise DataError(
                f"{where}: line {number} holds {describe_type(record)}. Write one object a line."
            )
        records[number] = record
    check_columns(
        columns, list({key: None for record in records.values() for key in record}), where
    )
    cells = {column: [record.get(column) for record in records.values()] for column in columns}
    return cells, list(records)
