"""Plain tables: CSV, JSON Lines or Parquet with the columns task, item, and score or correct."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clbench.audit.logs.formats import Entry, Setup, digest_of, json_lines, log_format
from clbench.core.errors import DataError

METRICS = {"correct": "accuracy", "score": "score"}
"""Columns of scores, and the metrics that they hold."""
WORDS = {"true": 1.0, "false": 0.0, "": None}


@log_format("table", "*.csv", "*.jsonl", "*.parquet")
def read(path: Path) -> Iterator[Entry]:
    """Yield the rows of a table; ``metric``, ``run``, and ``input`` or ``prompt`` are optional."""
    rows = {".csv": _csv, ".jsonl": json_lines, ".parquet": _parquet}[path.suffix]
    setups: dict[tuple[str, str], Setup] = {}
    for row in rows(path):
        columns = [name for name in METRICS if name in row]
        if not columns or "task" not in row or "item" not in row:
            return
        task, run = str(row["task"]), str(row.get("run", ""))
        setup = setups.setdefault((task, run), Setup(task, f"{path} {run}"))
        given = digest_of(row.get("input") or row.get("prompt") or "")
        scores = {row.get("metric") or METRICS[name]: _number(row[name]) for name in columns}
        yield Entry(setup, str(row["item"]), given, scores)


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in (rows := csv.DictReader(file, strict=True)):
            if None in row or None in row.values():
                raise DataError(f"{path}, line {rows.line_num}: has not as many fields as line 1.")
            yield row


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _number(cell: Any) -> Any:
    try:
        return float(cell) if isinstance(cell, str) else cell
    except ValueError:
        return WORDS.get(cell.strip().lower(), cell)
