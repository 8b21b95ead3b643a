"""From a scenario of a suite file to its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from clbench.errors import PluginError, ShiftError
from clbench.shifts.base import ScenarioTasks, ShiftContext
from clbench.shifts.registry import SHIFTS
from clbench.shifts.scenario import (
    Scenario,
    ScenarioReport,
    describe_part,
    note_few_rows,
    note_shared_texts,
)
from clbench.shifts.severity import severities
from clbench.tasks.task import Task


class ScenarioLike(Protocol):
    """What of a suite's scenario is needed here."""

    @property
    def name(self) -> str:
        """The scenario's name."""
        ...

    @property
    def shift(self) -> str:
        """The registered name of its shift."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """The rest of its table."""
        ...


def build_scenario(spec: ScenarioLike, context: ShiftContext, *, severity: bool = True) -> Scenario:
    """The scenario of `spec`, checked and described.

    Parameters
    ----------
    spec
        Its name, shift and settings.
    context
        Rows, lengths and embeddings.
    severity
        Whether to measure the severity, which embeds up to 1000 rows of each task.

    Raises
    ------
    UnknownNameError, SettingsError
        If the shift or its settings are wrong.
    ShiftError
        If a part has no rows, or rows of one class only.
    PluginError
        If a shift of a plug-in returns something else than tasks.
    """
    shift = SHIFTS.get(spec.shift)(**spec.settings)
    built = _tasks(spec.shift, shift.build(context))
    divided = built.split is not None
    for task in built.tasks:
        _check_part(spec.name, task, divided)
    each = severities(built.tasks, context) if severity and len(built.tasks) > 1 else ()
    known = [value for value in each if value is not None]
    parts = tuple(describe_part(task) for task in built.tasks)
    numbers = dict(built.numbers)
    if built.pretraining is not None:
        numbers["pretraining_texts"] = len(built.pretraining.texts)
    report = ScenarioReport(
        parts,
        float(np.mean(known)) if known else None,
        each,
        numbers,
        (*note_few_rows(built.tasks), *note_shared_texts(built.tasks)),
    )
    return Scenario(
        spec.name,
        spec.shift,
        built.tasks,
        shift.settings(),
        built.split,
        report,
        built.picture,
        built.pretraining,
    )


def _tasks(shift: str, built: object) -> ScenarioTasks:
    if not isinstance(built, ScenarioTasks):
        if not isinstance(built, Sequence):
            raise PluginError(
                f"shift {shift!r}: build returned {type(built).__name__}, not tasks in a list."
            )
        built = ScenarioTasks(tuple(built))
    wrong = [task for task in built.tasks if not isinstance(task, Task)]
    if wrong or not built.tasks:
        found = type(wrong[0]).__name__ if wrong else "nothing"
        raise PluginError(f"shift {shift!r}: build returned {found} where tasks belong.")
    return built


def _check_part(scenario: str, task: Task, divided: bool) -> None:
    for split in ("train", "validation", "tuning"):
        rows = getattr(task, split)
        if rows is None:
            continue
        remedy = _remedy(split, divided)
        where = f"scenario {scenario!r}: the {split} rows of {task.name!r}"
        if len(rows) == 0:
            raise ShiftError(f"{where} would be empty. {remedy}")
        if not task.regression and len(np.unique(rows.labels)) == 1:
            label = task.labels[int(rows.labels[0])]
            raise ShiftError(f"{where} ({len(rows)}) would all be of class {label!r}. {remedy}")


def _remedy(split: str, divided: bool) -> str:
    """What to do about rows that are too few or of one class."""
    if divided:
        return "Use more rows (a larger --limit) or other settings of the shift."
    if split == "tuning":
        return "Use a larger tuning_fraction, or more rows."
    return "Use more rows (a larger --limit), or a file with rows of all classes."
