"""Tasks in CSV, TSV, JSON Lines and Parquet files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clbench.core.errors import DataError, did_you_mean
from clbench.core.files import read_file, user_path
from clbench.core.seeds import numpy_stream
from clbench.tasks.columns import Columns, check_columns
from clbench.tasks.metrics import check_metrics
from clbench.tasks.spec import SPLITS, SUFFIXES, FileTaskSpec, Split
from clbench.tasks.task import Task, TaskSource, hold_out


@dataclass(frozen=True)
class FileTask:
    """The loader of a ``[task.NAME]`` table of files, `spec`."""

    name: str
    spec: FileTaskSpec

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics; the first is the score."""
        return self.spec.scores

    def __call__(self, source: TaskSource) -> Task:
        """Return the task; raise a DataError if a file is missing or invalid."""
        spec, paths = self.spec, self.spec.paths
        table = self._read(source.base, "train")
        labels = spec.labels or (table.class_names() if spec.has_classes else [])
        train, blank = table.rows(labels), {"train": table.blank}
        if spec.validation_fraction is not None:
            where = f"task {self.name!r}: validation_fraction = {spec.validation_fraction:g}"
            rng = numpy_stream("held out", self.name)
            train, validation = hold_out(
                train, spec.validation_fraction, rng, spec.regression, where
            )
        else:
            one, other = (user_path(path, "file", source.base) for path in paths.values())
            if one.samefile(other):
                raise DataError(
                    f"task {self.name!r}: train and validation are the same file. Give another "
                    "file, or validation_fraction = 0.1 to hold out rows."
                )
            validation_table = self._read(source.base, "validation")
            validation = validation_table.rows(labels)
            blank["validation"] = validation_table.blank
        return Task(
            self.name,
            tuple(labels),
            self.metrics,
            train,
            validation,
            head=self.name,
            source={**self.identity(source), **({"blank": blank} if spec.skip_blank else {})},
            template=spec.template(labels, f"task {self.name!r}: "),
        )

    def column(self, source: TaskSource, name: str) -> dict[str, dict[int, str]]:
        """Return the cells of a column by split and `Rows.index`."""
        return {
            split: self._read(
                source.base, "train" if self.spec.validation is None else split, name
            ).by_row(name)
            for split in SPLITS
        }

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Return digests of the files, and the settings for reading them."""
        spec = self.spec
        where = f"[task.{self.name}] metrics"
        check_metrics(where, self.metrics, spec.regression, free_text=bool(spec.target))
        settings = self.spec.identity(exclude={"train", "validation", "format", "separator"})
        if self.spec.separator is not None:
            settings["separator"] = self.spec.separator
        files, formats = {}, {}
        for split, path in self.spec.paths.items():
            content = self._content(source.base, split)
            files[split] = hashlib.blake2b(content, digest_size=16).hexdigest()
            formats[split] = self.spec.format_of(path)
        return {"files": files, "formats": formats, **settings}

    def _content(self, base: Path, split: Split) -> bytes:
        where = self._where(split)
        path = user_path(self.spec.paths[split], f"task {self.name!r}, {split} =", base)
        try:
            content = read_file(path)
        except OSError as error:
            names = [other.name for other in path.parent.glob("*") if other.suffix in SUFFIXES]
            hint = did_you_mean(path.name, names) if names and not path.exists() else ""
            raise DataError(f"{where}: {path} cannot be read: {error.strerror}.{hint}") from error
        if not content.strip():
            raise DataError(f"{where}: {path} is empty.")
        return content

    def _read(self, base: Path, split: Split, *more: str) -> Columns:
        """Return the columns of the task, and `more`, as pyarrow types them; text for CSV."""
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.json
        import pyarrow.parquet

        spec, where, content = self.spec, self._where(split), self._content(base, split)
        kind, buffer = spec.format_of(spec.paths[split]), pa.BufferReader(content)
        block = {"block_size": len(content) + 1, "use_threads": False}
        columns = list(dict.fromkeys([*spec.columns, *more]))
        try:
            if kind == "parquet":
                table = pa.parquet.ParquetFile(buffer).read()
            elif kind == "jsonl":
                table = pa.json.read_json(buffer, pa.json.ReadOptions(**block))
            else:
                separator = spec.separator or ("\t" if kind == "tsv" else ",")
                table = pa.csv.read_csv(
                    buffer,
                    pa.csv.ReadOptions(**block),
                    pa.csv.ParseOptions(
                        delimiter=separator,
                        quote_char='"' if spec.quotes else False,
                        newlines_in_values=True,
                    ),
                    pa.csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string())),
                )
            check_columns(columns, table.column_names, where)
            cells = {column: table.column(column).to_pylist() for column in columns}
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            name = "Parquet file" if kind == "parquet" else f"{kind} file in UTF-8"
            raise DataError(f"{where}: not a valid {name} ({reason}).") from error
        if not len(table):
            raise DataError(f"{where}: the file has no rows.")
        if kind == "tsv" and any("\n" in cell for cell in cells[columns[0]]):
            raise DataError(
                f"{where}: a quoted text spans several lines, which TSV does not allow. Set "
                "quotes = false if quotes are plain characters, or save the file as CSV."
            )
        return Columns(where, spec, cells)

    def _where(self, split: Split) -> str:
        return f"task {self.name!r}, {split} = {self.spec.paths[split]!r}"
