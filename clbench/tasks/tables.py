"""Tasks in tables: their rows, and tables in CSV, TSV, JSON Lines and Parquet files."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from clbench.core import errors
from clbench.core.files import UTF16, digest, not_utf8, read_file, user_path
from clbench.core.seeds import numpy_stream
from clbench.tasks.metrics import check_metrics
from clbench.tasks.spec import SPLITS, SUFFIXES, FileTaskSpec, Split, TableSpec, label_name
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
    """

    where: str
    spec: TableSpec
    cells: Mapping[str, Sequence[Any]]
    names: Sequence[str] | None = None
    line: Callable[[int], int] = lambda row: 0

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
            targets, labels = [str(label) for label in labels], [0] * len(labels)
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


def _cells(text: str, column: str) -> Iterator[Any]:
    """Yield the cells of a column of JSON Lines, where pyarrow does not tell 1 from 1.0."""
    decoder, at = json.JSONDecoder(), 0
    while start := re.compile(r"\s*(?=\S)").match(text, at):
        row, at = decoder.raw_decode(text, start.end())
        yield row.get(column)


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


@dataclass(frozen=True)
class FileTask(TableTask):
    """The loader of a ``[task.NAME]`` table of files, `spec`."""

    spec: FileTaskSpec

    def tables(self, source: TaskSource, *more: str) -> dict[str, Table]:
        """Return the table of each file; text for CSV and TSV, else as pyarrow types it."""
        paths = [self._path(source.base, split) for split in self.spec.paths]
        tables: dict[str, Table] = {
            split: self._read(source.base, split, *more) for split in self.spec.paths
        }
        if len(paths) == 2 and paths[0].samefile(paths[1]):
            raise errors.DataError(
                f"task {self.name!r}: train and validation are the same file. Give another file, "
                "or validation_fraction = 0.1 to hold out rows."
            )
        return tables

    def origin(self, source: TaskSource) -> dict[str, Any]:
        """Return digests of the files, and the settings for reading them."""
        spec, paths = self.spec, self.spec.paths
        settings = spec.identity(exclude={"train", "validation", "format", "separator"})
        if spec.separator is not None:
            settings["separator"] = spec.separator
        files = {split: digest(self._content(source.base, split)) for split in paths}
        formats = {split: spec.format_of(path) for split, path in paths.items()}
        return {"files": files, "formats": formats, **settings}

    def _where(self, split: Split) -> str:
        return f"task {self.name!r}, {split} = {self.spec.paths[split]!r}"

    def _path(self, base: Path, split: Split) -> Path:
        return user_path(self.spec.paths[split], f"task {self.name!r}, {split} =", base)

    def _content(self, base: Path, split: Split) -> bytes:
        where, path = self._where(split), self._path(base, split)
        try:
            content = read_file(path)
        except OSError as error:
            names = [other.name for other in path.parent.glob("*") if other.suffix in SUFFIXES]
            hint = errors.did_you_mean(path.name, names) if names and not path.exists() else ""
            raise errors.DataError(
                f"{where}: {path} cannot be read: {error.strerror}.{hint}"
            ) from error
        if not content.strip():
            raise errors.DataError(f"{where}: {path} is empty.")
        return content

    def _read(self, base: Path, split: Split, *more: str) -> Table:
        import pyarrow as pa
        from pyarrow import csv as tables
        from pyarrow import json as json_lines
        from pyarrow import parquet

        spec, where, content = self.spec, self._where(split), self._content(base, split)
        kind, buffer = spec.format_of(spec.paths[split]), pa.BufferReader(content)
        block = {"block_size": len(content) + 1, "use_threads": False}
        columns = list(dict.fromkeys([*spec.columns, *more]))
        separator = spec.separator or ("\t" if kind == "tsv" else ",")
        line = partial(_line, content, kind, separator, quotes=spec.quotes)
        if content[:2] in UTF16:  # else read as other columns
            raise errors.DataError(f"{where}{not_utf8(content, spec.paths[split])}")
        try:
            if kind == "parquet":
                table = parquet.ParquetFile(buffer).read()
            elif kind == "jsonl":
                if content.lstrip()[:1] == b"[":  # one array
                    content = "\n".join(map(json.dumps, json.loads(content))).encode()
                    buffer, block["block_size"] = pa.BufferReader(content), len(content) + 1
                table = json_lines.read_json(buffer, json_lines.ReadOptions(**block))
            else:
                table = tables.read_csv(
                    buffer,
                    tables.ReadOptions(**block),
                    tables.ParseOptions(
                        delimiter=separator,
                        quote_char='"' if spec.quotes else False,
                        newlines_in_values=True,
                    ),
                    tables.ConvertOptions(column_types=dict.fromkeys(columns, pa.string())),
                )
            check_columns(columns, table.column_names, where)
            cells = {column: table.column(column).to_pylist() for column in columns}
            is_float = kind == "jsonl" and pa.types.is_floating(table.column(spec.label).type)
            if is_float and spec.has_classes and not spec.labels:
                labels = [*_cells(content.decode("utf-8-sig"), spec.label)]
                whole = {label for label in labels if type(label) is int}
                if twice := sorted(whole.intersection(x for x in labels if type(x) is float)):
                    raise errors.DataError(
                        f"{where}: column {spec.label!r} (key 'label') has both {twice[0]:.0f} and "
                        f"{twice[0]:.1f}. {ONE_WAY}"
                    )
        except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
            if kind != "parquet" and (problem := not_utf8(content, spec.paths[split])):
                raise errors.DataError(f"{where}{problem}") from error
            reason = " ".join(str(error).split())[:200]
            reason = re.sub(r"Row #(\d+)", lambda row: f"line {line(int(row[1]) - 2)}", reason)
            suffix = "json" if content.lstrip()[:1] == b"[" else kind
            name = "Parquet file" if kind == "parquet" else f"{suffix} file in UTF-8"
            raise errors.DataError(f"{where}: not a valid {name} ({reason}).") from error
        if not len(table):
            raise errors.DataError(f"{where}: the file has no rows.")
        if kind == "tsv" and any("\n" in cell for cell in cells[columns[0]]):
            raise errors.DataError(
                f"{where}: a quoted text spans several lines, which TSV does not allow. Set "
                "quotes = false if quotes are plain characters, or save the file as CSV."
            )
        return Table(where, spec, cells, line=line)


def _line(content: bytes, kind: str, separator: str, row: int, *, quotes: bool) -> int:
    """Return the line on which a row of a file begins, from 1; 0 if the file has none."""
    text, begins = io.StringIO(content.decode("utf-8-sig", "replace"), newline=""), list[int]()
    if kind == "jsonl":
        begins = [number for number, line in enumerate(text, 1) if line.strip()]
    elif kind != "parquet":
        quoting: Any = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
        reader, end = csv.reader(text, delimiter=separator, quoting=quoting), 0
        with suppress(csv.Error):  # a field is too long
            for record in reader:
                if record:  # empty lines do not count
                    begins.append(end + 1)
                end = reader.line_num
        del begins[:1]  # the header
    return begins[row] if row < len(begins) else 0
