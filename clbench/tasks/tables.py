"""Columns out of CSV, TSV, JSON Lines and Parquet files, strictly: a fault names its line."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clbench.errors import DataError, did_you_mean
from clbench.messages import count, describe_missing, describe_type
from clbench.tasks.files import SUFFIXES, Format

SEPARATORS = {",": 'format = "csv"', "\t": 'format = "tsv"', ";": "", "|": ""}
"""What may stand between fields, and the key that says so, where it is not ``separator``."""


@dataclass(frozen=True)
class Table:
    """The wanted columns of one file.

    Attributes
    ----------
    columns
        Cells by column, each of n values; a missing cell is None.
    lines
        Line on which each row begins, counted from 1; empty for Parquet, which has none.
    """

    columns: dict[str, list[Any]]
    lines: Sequence[int]

    def place(self, row: int) -> str:
        """Where row `row` (from 0) stands in the file, in words."""
        return f"line {self.lines[row]}" if self.lines else f"row {row} (counted from 0)"


def read_bytes(path: Path, where: str) -> bytes:
    """The content of a data file.

    Raises
    ------
    DataError
        If it is missing, no file, unreadable or empty; `where` begins the message.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as fault:
        if path.is_symlink():
            raise DataError(f"{where}: {path} {describe_missing(path)}. Mend the link.") from fault
        raise DataError(f"{where}: there is no file {path}.{_siblings(path)}") from fault
    except IsADirectoryError as fault:
        raise DataError(f"{where}: {path} is a folder. Name the file in it.") from fault
    except OSError as fault:
        raise DataError(f"{where}: {path} cannot be read: {fault.strerror}.") from fault
    if not content.strip():
        raise DataError(f"{where}: {path} is empty.")
    return content


def read_table(
    content: bytes,
    wanted: Sequence[tuple[str, str]],
    kind: Format,
    where: str,
    *,
    separator: str = ",",
    quotes: bool = True,
) -> Table:
    """The wanted columns of a data file.

    Parameters
    ----------
    content
        Its bytes.
    wanted
        Pairs of the suite's key and the column that it names.
    kind
        The file's format.
    where
        Beginning of messages: the task and the file.
    separator
        Between the fields of CSV and TSV.
    quotes
        Whether double quotes enclose fields of CSV and TSV.

    Raises
    ------
    DataError
        If a column is missing or the file is broken, with the line where that can be told.
    """
    if kind == "parquet":
        table = _parquet(content, wanted, where)
    elif kind == "jsonl":
        table = _json_lines(_decode(content, where), wanted, where)
    else:
        table = _delimited(_decode(content, where), wanted, separator, quotes, where)
    if not next(iter(table.columns.values())):
        raise DataError(f"{where}: there are no rows in it.")
    return table


def _decode(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"{where}: is UTF-16, not UTF-8. Save the file as UTF-8.") from fault
        line = content[: fault.start].count(b"\n") + 1
        raise DataError(
            f"{where}: line {line} is not UTF-8 (byte 0x{content[fault.start]:02x}). "
            "Save the file as UTF-8."
        ) from fault


def _delimited(
    text: str, wanted: Sequence[tuple[str, str]], separator: str, quotes: bool, where: str
) -> Table:
    tabs = separator == "\t"
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=separator,
        quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
        strict=True,
    )
    remedy = " If quotes are plain characters in this file, set quotes = false." if quotes else ""
    longest = csv.field_size_limit(sys.maxsize)  # texts may be longer than the module's 128 KiB
    lines: list[int] = []
    rows: list[list[str]] = []
    begin = 1
    try:
        header = next(reader)
        _check_separator(header, wanted, separator, where)
        at = [_position(key, column, header, where, first_line=True) for key, column in wanted]
        begin = reader.line_num + 1
        for row in reader:
            if row:
                if len(row) != len(header):
                    raise DataError(
                        f"{where}: line {begin} has {count(len(row), 'field')}, the header "
                        f"has {len(header)}. Mend the line (a separator inside a text needs quotes "
                        f"around it).{remedy if tabs else ''}"
                    )
                if tabs and reader.line_num > begin:
                    raise DataError(
                        f"{where}: a quoted field on line {begin} runs on to line "
                        f"{reader.line_num}, which TSV does not allow.{remedy} Otherwise save the "
                        "file as CSV, JSON Lines or Parquet."
                    )
                rows.append(row)
                lines.append(begin)
            begin = reader.line_num + 1
    except csv.Error as fault:
        raise DataError(f"{where}: line {begin} is broken: {fault}.{remedy}") from fault
    finally:
        csv.field_size_limit(longest)
    columns = {
        column: [row[place] or None for row in rows]
        for (_, column), place in zip(wanted, at, strict=True)
    }
    return Table(columns, lines)


def _check_separator(
    header: Sequence[str], wanted: Sequence[tuple[str, str]], separator: str, where: str
) -> None:
    """Refuse a file whose header holds the wanted columns, but between other separators."""
    columns = {column for _, column in wanted}
    if len(header) != 1 or columns <= set(header):
        return
    for other, key in SEPARATORS.items():
        found = {name.strip().strip('"') for name in header[0].split(other)}
        if other != separator and columns & found:
            remedy = key or f'separator = "{other}"'
            raise DataError(
                f"{where}: its fields seem to be separated by {other!r}, not {separator!r}. "
                f"Set {remedy}."
            )


def _json_lines(text: str, wanted: Sequence[tuple[str, str]], where: str) -> Table:
    columns: dict[str, list[Any]] = {column: [] for _, column in wanted}
    lines: list[int] = []
    seen: set[str] = set()
    # str.splitlines would also cut at U+2028, which is legal inside a JSON text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as fault:
            hint = ""
            if number == 1 and line.lstrip().startswith("["):
                hint = " A single JSON array is not JSON Lines: write one object a line."
            raise DataError(f"{where}: line {number} is not valid JSON: {fault}.{hint}") from fault
        if not isinstance(record, dict):
            raise DataError(
                f"{where}: line {number} holds {describe_type(record)}, not an object. "
                "JSON Lines has one object a line."
            )
        seen.update(record)
        lines.append(number)
        for column, cells in columns.items():
            cells.append(record.get(column))
    for key, column in wanted:
        if lines and column not in seen:
            _position(key, column, sorted(seen), where)
    return Table(columns, lines)


def _parquet(content: bytes, wanted: Sequence[tuple[str, str]], where: str) -> Table:
    import pyarrow
    import pyarrow.parquet

    with whole_parquet(where):
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content))
        header = file.schema_arrow.names
        for key, column in wanted:
            _position(key, column, header, where)
        names = [column for _, column in wanted]
        read = file.read(columns=names)
        return Table({name: read.column(name).to_pylist() for name in names}, ())


@contextmanager
def whole_parquet(where: str) -> Iterator[None]:
    """Make one line of what the reader of Parquet says of a broken file.

    Raises
    ------
    DataError
        In the place of its errors.
    """
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as fault:
        reason = " ".join(str(fault).split())[:200]
        raise DataError(
            f"{where}: this is no whole Parquet file ({reason}). Copy or write it again."
        ) from fault


def _position(
    key: str, column: str, header: Sequence[str], where: str, *, first_line: bool = False
) -> int:
    count = header.count(column)
    if count == 1:
        return header.index(column)
    if count:
        raise DataError(f"{where}: {count} columns are called {column!r} (key {key!r}).")
    available = did_you_mean(column, header)
    named = "" if "Did you mean" in available else " Its first line must name the columns."
    raise DataError(
        f"{where}: there is no column {column!r} (key {key!r}).{available}"
        f"{named if first_line else ''}"
    )


def _siblings(path: Path) -> str:
    """The end of a message about a missing file: what else is there."""
    if not path.parent.is_dir():
        return f" There is no folder {path.parent} either."
    names = [
        other.name
        for other in path.parent.iterdir()
        if other.suffix.lower() in SUFFIXES and other.is_file()
    ]
    return did_you_mean(path.name, names) if names else ""
