"""Plain tables: CSV, JSON Lines or Parquet with the columns task, item, and score or correct."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet

from clbench.audit.logs import formats
from clbench.audit.logs.formats import FORMATS, Entry, Metric
from clbench.core.errors import DataError, join_names

METRICS = {"correct": "accuracy", "score": "score"}
"""Columns of scores, and the metrics that they hold."""
LONGEST = 2**31 - 1
"""Most characters of a field, such as a long prompt."""
WORDS = {"true": 1.0, "false": 0.0, "": None}


@FORMATS.register("*.csv")
@FORMATS.register("*.tsv")
@FORMATS.register("*.jsonl")
@FORMATS.register("*.parquet")
def read(path: Path) -> Iterator[Entry]:
    """Yield the rows of a table; ``metric``, ``run``, and ``input`` or ``prompt`` are optional.

    A metric that is named has the value of ``correct``, else that of ``score``.
    """
    rows = {".jsonl": formats.json_lines, ".parquet": _parquet}.get(path.suffix.lower(), _csv)
    columns: list[str] = []
    for row in rows(path):
        columns = columns or _scores(row)
        run, given = f"{path} {row.get('run', '')}", row.get("input") or row.get("prompt") or ""
        scores: dict[Metric, Any] = {}
        for name in columns:
            metric = Metric(row.get("metric") or METRICS[name])
            if scores.get(metric) is None:
                scores[metric] = _number(row[name])
        yield Entry(str(row["task"]), run, str(row["item"]), formats.digest_of(given), scores)


def _scores(columns: Iterable[str]) -> list[str]:
    """Return the columns that hold scores; an OtherColumnsError if the table is no log."""
    found = {*columns}
    if not found & METRICS.keys() or not found >= {"task", "item"}:
        raise formats.OtherColumnsError(join_names(columns))
    return [name for name in METRICS if name in found]


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(LONGEST)
    with path.open(encoding="utf-8-sig", newline="") as file:
        tab = "\t" if path.suffix.lower() == ".tsv" else ","
        rows = csv.DictReader(file, strict=True, delimiter=tab)
        rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
        _scores(rows.fieldnames)
        for row in rows:
            if None in row or None in row.values():
                raise DataError(
                    f"{path}, line {rows.line_num}: has not as many fields as line 1. Correct it, "
                    "or put texts with commas in quotes."
                )
            yield row


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _number(cell: Any) -> Any:
    try:
        return float(cell) if isinstance(cell, str) else cell
    except ValueError:
        return WORDS.get(cell.strip().lower(), cell)
