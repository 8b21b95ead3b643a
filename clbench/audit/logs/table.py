"""Plain tables: CSV, JSON Lines or Parquet with the columns task, item, and score or correct."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clbench.audit.logs.formats import Entry, Setup, digest_of, json_lines, log_format
from clbench.core.errors import DataError, did_you_mean, join_names

METRICS = {"correct": "accuracy", "score": "score"}
"""Columns of scores, and the metrics that they hold; the first one decides."""
SCORES = {"true": 1.0, "false": 0.0, "": None}
"""Scores in words."""


@log_format("table-jsonl", "*.jsonl", fallback=True)
def read_jsonl(path: Path) -> Iterator[Entry]:
    """Yield the rows of a table in JSON Lines."""
    return _entries(path, json_lines(path))


@log_format("table-parquet", "*.parquet", fallback=True)
def read_parquet(path: Path) -> Iterator[Entry]:
    """Yield the rows of a table in Parquet."""
    return _entries(path, ((f"{path}, row {n}", r) for n, r in enumerate(parquet(path), 1)))


@log_format("table-csv", "*.csv", fallback=True)
def read_csv(path: Path) -> Iterator[Entry]:
    """Yield the rows of a table in CSV."""
    return _entries(path, _csv_rows(path))


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            for cells in filter(None, rows):
                where = f"{path}, line {rows.line_num}"
                if len(cells) != len(header):
                    raise DataError(
                        f"{where}: has {len(cells)} of {len(header)} fields. The table may be cut off."
                    )
                yield where, dict(zip(header, cells, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not a valid CSV file in UTF-8 ({error}).") from error


def parquet(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file with those of `columns` that it has."""
    import pyarrow as pa
    from pyarrow import parquet as tables

    try:
        for batch in tables.ParquetFile(path).iter_batches(columns=columns):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: is not a whole Parquet file ({reason}). Copy it again."
        ) from error


def _entries(path: Path, rows: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[Entry]:
    setups: dict[tuple[str, str], Setup] = {}
    for where, row in rows:
        if missing := [name for name in ("task", "item") if row.get(name) is None]:
            hint = did_you_mean(missing[0], map(str, row))
            raise DataError(f"{where}: there is no column {missing[0]!r}.{hint}")
        if not (found := [name for name in METRICS if name in row]):
            raise DataError(
                f"{where}: there is neither a column 'score' nor 'correct', but "
                f"{join_names(map(str, row))}."
            )
        key = str(row["task"]), str(row.get("run", ""))
        if key not in setups:
            setups[key] = Setup(key[0], f"{path} {key[1]}".strip())
        scores = {str(row.get("metric") or METRICS[name]): _number(row[name]) for name in found}
        given = digest_of(row.get("input") or row.get("prompt") or "")
        yield Entry(setups[key], str(row["item"]), given, scores, 0, where)


def _number(cell: Any) -> Any:
    """Return a cell as a number if it is one."""
    if not isinstance(cell, str):
        return cell
    try:
        return float(cell)
    except ValueError:
        return SCORES.get(cell.strip().lower(), cell)
