"""Tasks in files: CSV, TSV, JSON Lines and Parquet."""

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clbench.core import errors
from clbench.core.files import UTF16, digest, not_utf8, read_file, user_path
from clbench.tasks.spec import SUFFIXES, FileTaskSpec, Split
from clbench.tasks.tables import ONE_WAY, Table, TableTask, check_columns
from clbench.tasks.task import TaskSource


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
        is_array = content.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
        try:
            if kind == "parquet":
                table = parquet.ParquetFile(buffer).read()
            elif kind == "jsonl":
                if is_array:
                    content = "\n".join(map(json.dumps, json.loads(content))).encode()
                    buffer, block["block_size"] = pa.BufferReader(content), len(content) + 1
                options = json_lines.ReadOptions(**block)
                table = json_lines.read_json(buffer, options)
                dates = [f.name for f in table.schema if pa.types.is_timestamp(f.type)]
                if dates:  # read them again as they are written
                    texts = pa.schema([(name, pa.string()) for name in dates])
                    as_texts = json_lines.ParseOptions(explicit_schema=texts)
                    table = json_lines.read_json(pa.BufferReader(content), options, as_texts)
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
            suffix = "json" if is_array else kind
            name = "Parquet file" if kind == "parquet" else f"{suffix} file in UTF-8"
            raise errors.DataError(f"{where}: not a valid {name} ({reason}).") from error
        if not len(table):
            raise errors.DataError(f"{where}: the file has no rows.")
        if kind == "tsv" and any("\n" in cell for column in columns for cell in cells[column]):
            raise errors.DataError(
                f"{where}: a quoted text spans several lines, which TSV does not allow. Set "
                "quotes = false if quotes are plain characters, or save the file as CSV."
            )
        return Table(where, spec, cells, line=line)


def _cells(text: str, column: str) -> Iterator[Any]:
    """Yield the cells of a column of JSON Lines, where pyarrow does not tell 1 from 1.0."""
    decoder, at = json.JSONDecoder(), 0
    while start := re.compile(r"\s*(?=\S)").match(text, at):
        row, at = decoder.raw_decode(text, start.end())
        yield row.get(column)


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
