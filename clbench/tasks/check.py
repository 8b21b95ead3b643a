"""What every task must satisfy, wherever it came from."""

from __future__ import annotations

from typing import Any

import numpy as np

from clbench.errors import DataError, did_you_mean
from clbench.messages import describe_type
from clbench.tasks.files import CLASS_METRICS, REGRESSION_METRICS
from clbench.tasks.task import Rows, Task


def check_task(name: str, task: Any) -> Task:
    """`task`, if it is one that can be trained on and scored.

    Parameters
    ----------
    name
        What was asked for.
    task
        What a loader returned.

    Raises
    ------
    DataError
        Naming the split and what is wrong with it.
    """
    if not isinstance(task, Task):
        raise DataError(f"task {name!r}: its loader returned {type(task).__name__}, not a Task.")
    where = f"task {name!r}"
    if task.name != name:
        raise DataError(f"{where}: its loader named it {task.name!r}. Use one name for both.")
    if len(task.labels) == 1:
        raise DataError(
            f"{where}: there is a single class, {task.labels[0]!r}. A task needs at least two, "
            "or a number to predict (regression)."
        )
    if not task.metrics:
        raise DataError(f"{where}: it has no metric.")
    allowed = REGRESSION_METRICS if task.regression else CLASS_METRICS
    for metric in task.metrics:
        if metric not in allowed:
            raise DataError(f"{where}: no metric {metric!r} here.{did_you_mean(metric, allowed)}")
    for split in ("train", "validation", "tuning"):
        rows = getattr(task, split)
        if split == "tuning" and rows is None:
            continue
        _check_rows(task, rows, f"{where}, {split} rows")
    return task


def _check_rows(task: Task, rows: Rows, where: str) -> None:
    if len(rows) == 0:
        raise DataError(f"{where}: there are none.")
    if (rows.second is None) == task.is_pair:
        raise DataError(f"{where}: every split must have as many texts a row as the training rows.")
    columns = [rows.first] if rows.second is None else [rows.first, rows.second]
    for column in columns:
        if len(column) != len(rows.labels) or len(rows.index) != len(rows.labels):
            raise DataError(
                f"{where}: {len(column)} texts, {len(rows.labels)} labels and "
                f"{len(rows.index)} positions; there must be one of each a row."
            )
        for number, text in enumerate(column):
            if not isinstance(text, str):
                raise DataError(
                    f"{where}: the text of row {number} is {text!r}, {describe_type(text)} and no "
                    "text."
                )
    if task.regression:
        bad = ~np.isfinite(rows.labels)
        wanted = "finite numbers"
    else:
        bad = (rows.labels < 0) | (rows.labels >= len(task.labels))
        wanted = f"0 to {len(task.labels) - 1}"
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        hint = " (-1 marks an unlabelled test split)" if rows.labels[at] == -1 else ""
        raise DataError(
            f"{where}: the label of row {at} is {rows.labels[at]}{hint}; labels must be {wanted}."
        )
