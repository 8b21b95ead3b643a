"""Check what a task's loader returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from clbench.core.errors import DataError, describe_type
from clbench.tasks.metrics import check_groups, check_metrics
from clbench.tasks.task import Rows, Task


def check_task(name: str, task: Any) -> Task:
    """Return `task`, what the loader of `name` returned, if it can be trained on and scored.

    Raises
    ------
    DataError
        If not; names the split and what is wrong with it.
    """
    where = f"task {name!r}"
    if not isinstance(task, Task):
        raise DataError(f"{where}: its loader returned {type(task).__name__}, not a Task.")
    if task.name != name:
        raise DataError(f"{where}: its loader named it {task.name!r}. Use one name for both.")
    if len(task.labels) == 1:
        raise DataError(f"{where}: there is only one class, {task.labels[0]!r}.")
    if not task.metrics:
        raise DataError(f"{where}: it has no metric. Name one, such as accuracy.")
    check_metrics(where, task.metrics, task.regression, free_text=task.free_text)
    _check_rows(task, task.train, f"{where}, train rows")
    _check_rows(task, task.validation, f"{where}, validation rows")
    if task.tuning is not None:
        _check_rows(task, task.tuning, f"{where}, tuning rows")
    return task


def _check_rows(task: Task, rows: Rows, where: str) -> None:
    if len(rows) == 0:
        raise DataError(f"{where}: there are none.")
    if (rows.second is None) == task.is_pair or len(rows.columns) != len(task.train.columns):
        raise DataError(f"{where}: every split needs as many texts per row as the training rows.")
    if rows.choices and (rows.second is not None or len(rows.choices) != len(task.labels)):
        raise DataError(
            f"{where}: {len(rows.choices)} choices and {len(task.labels)} labels; multiple choice "
            "needs a label for each choice, and no second text."
        )
    if (rows.targets is None) == task.free_text:
        raise DataError(f"{where}: every split needs targets, or none does.")
    if not task.free_text:
        check_groups(where, task.metrics, rows.groups is not None)
    for column in rows.columns:
        if not len(column) == len(rows.labels) == len(rows.index):
            raise DataError(
                f"{where}: {len(column)} texts, {len(rows.labels)} labels and {len(rows.index)} "
                "positions; every row needs one of each."
            )
        for row, text in enumerate(column):
            if not isinstance(text, str):
                raise DataError(
                    f"{where}: the text of row {row} is {text!r}, {describe_type(text)}."
                )
    valid, allowed = np.isfinite(rows.labels), "a finite number"
    if task.free_text:
        valid, allowed = rows.labels == 0, "0 for rows with targets"
    elif not task.regression:
        valid = (rows.labels >= 0) & (rows.labels < len(task.labels))
        allowed = f"from 0 to {len(task.labels) - 1}, a position in `labels`"
    if not valid.all():
        row = int(np.flatnonzero(~valid)[0])
        hint = " (-1 marks an unlabelled test split)" if rows.labels[row] == -1 else ""
        raise DataError(
            f"{where}: the label of row {row} is {rows.labels[row]}{hint}; it must be {allowed}."
        )
