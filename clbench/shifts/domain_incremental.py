"""Domain-incremental learning: one list of classes, from one domain after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from clbench.core.errors import ShiftError, count, did_you_mean, join_names
from clbench.shifts.base import ScenarioTasks, Shift, ShiftContext, row_splits
from clbench.shifts.sequence import relabelled
from clbench.tasks.spec import LabelName
from clbench.tasks.task import Task

Names = Annotated[list[LabelName], Field(min_length=1)]


class DomainIncremental(Shift):
    """One list of classes and one head; the domain changes from task to task.

    Give `task` and `by`, or `tasks`.

    Attributes
    ----------
    task, by
        Name of a task in files or on the hub, and the column that holds the domain of each row.
    domains
        For `by`, the domains in training order; others are left out.
    tasks
        Names of tasks, each of which is a domain.
    classes
        For `tasks`: old names of each class by its new one, such as ``negative = ["neg", "1
        star"]``; rows of other classes are left out. By default the tasks must have equal classes.
    """

    name = "domain-incremental"
    short_name: ClassVar[str | None] = "domains"

    task: str | None = None
    by: str | None = None
    domains: Annotated[list[LabelName], Field(min_length=2)] | None = None
    tasks: Annotated[list[str], Field(min_length=2)] | None = None
    classes: Annotated[dict[str, Names], Field(min_length=2)] | None = None

    @property
    def k(self) -> int:
        """The number of domains; 2 without `domains`, with which `build` does not succeed."""
        return len(self.tasks or self.domains or (1, 2))

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the domains in order.

        Raises
        ------
        ShiftError
            If the settings or the rows do not give at least two domains with one list of classes.
        """
        if self.tasks is not None and not (self.task or self.by or self.domains):
            return ScenarioTasks(self._of_tasks([context.task(name) for name in self.tasks]))
        if self.task is None or self.by is None or self.tasks or self.classes:
            raise ShiftError(
                "shift 'domain-incremental': give task, by and domains; or tasks, and perhaps "
                "classes."
            )
        return self._of_column(context.task(self.task), context)

    def _of_column(self, task: Task, context: ShiftContext) -> ScenarioTasks:
        assert self.by is not None
        where = f"domains of {task.name!r} by {self.by!r}"
        domain_of = context.column(task.name, self.by)
        splits = {
            key: np.asarray(
                [
                    domain_of["validation" if key == "validation" else "train"].get(int(i), "")
                    for i in rows.index
                ]
            )
            for key, rows in row_splits(task).items()
        }
        present = sorted(set(splits["train"].tolist()) - {""})
        if len(present) == 1:
            raise ShiftError(
                f"{where}: every training row has {present[0]!r}. Name a column with two domains "
                "or more."
            )
        if self.domains is None:
            raise ShiftError(
                f"{where}: give the domains in training order, as `domains`. There are "
                f"{len(present)}: {join_names(present)}."
            )
        names = self.domains
        for name in names:
            if name not in present:
                raise ShiftError(
                    f"{where}: no training row has {name!r}.{did_you_mean(name, present)}"
                )
        if len(set(names)) < len(names):
            raise ShiftError(f"{where}: {join_names(names)} are not all different. Name each once.")
        parts = []
        for name in names:
            rows: dict[str, Any] = {
                key: split.take(np.flatnonzero(splits[key] == name))
                for key, split in row_splits(task).items()
            }
            parts.append(replace(task, name=f"{task.name}[{name}]", **rows))
        for name, part in zip(names, parts, strict=True):
            _check_classes(part, f"{where}: {name!r}", "Leave it out of `domains`, or add rows.")
        nowhere = sum(int((split == "").sum()) for split in splits.values())
        elsewhere = sum(int((~np.isin(split, [*names, ""])).sum()) for split in splits.values())
        notes = []
        if elsewhere:
            others = [name for name in present if name not in names]
            text = f"{count(elsewhere, 'row')} of other domains left out"
            notes.append(f"{text}: {join_names(others)}" if others else text)
        if nowhere:
            notes.append(f"{count(nowhere, 'row')} without a domain left out")
        numbers = {"rows_without_domain": nowhere, "rows_of_other_domains": elsewhere}
        return ScenarioTasks(tuple(parts), numbers=numbers, notes=tuple(notes))

    def _of_tasks(self, tasks: list[Task]) -> tuple[Task, ...]:
        names = [task.name for task in tasks]
        for task in tasks:
            if names.count(task.name) > 1:
                raise ShiftError(f"domains: {task.name!r} is there twice. Name each task once.")
            if not task.labels or task.train.choices:
                raise ShiftError(
                    f"domains: {task.name!r} has no classes that tasks can share. Name one with "
                    "classes."
                )
        mapping = self.classes or {name: [name] for name in tasks[0].labels}
        _check_mapping(mapping, {label for task in tasks for label in task.labels})
        if self.classes is None:
            for task in tasks:
                if sorted(task.labels) != sorted(tasks[0].labels):
                    raise ShiftError(
                        f"domains {join_names(self.tasks or ())}: {task.name!r} has the classes "
                        f"{join_names(task.labels)}, {tasks[0].name!r} has "
                        f"{join_names(tasks[0].labels)}. Map them in `classes`."
                    )
        parts = tuple(_mapped(task, mapping) for task in tasks)
        for part in parts:
            _check_classes(part, f"domains: {part.name!r}", "Raise limit, or leave it out.")
        return parts


def _check_classes(part: Task, where: str, advice: str) -> None:
    """Raise a ShiftError if no training row of a domain has one of the classes."""
    present = set(part.train.labels.tolist())
    if missing := [name for i, name in enumerate(part.labels) if i not in present]:
        raise ShiftError(
            f"{where} has no training row of the {'class' if len(missing) == 1 else 'classes'} "
            f"{join_names(missing)}, so it cannot teach all classes. {advice}"
        )


def _check_mapping(classes: Mapping[str, list[str]], labels: Collection[str]) -> None:
    """Raise a ShiftError if a class to map exists in no task, or is mapped twice."""
    owners: dict[str, str] = {}
    for new, names in classes.items():
        for name in names:
            if name not in labels:
                raise ShiftError(
                    f"domains: no task has the class {name!r} of {new!r} in `classes`."
                    f"{did_you_mean(name, labels)}"
                )
            if name in owners:
                where = f"{owners[name]!r} and {new!r}" if owners[name] != new else repr(new)
                raise ShiftError(
                    f"domains: class {name!r} is twice in `classes`, in {where}. Name it once."
                )
            owners[name] = new


def _mapped(task: Task, classes: Mapping[str, list[str]]) -> Task:
    """Return a task with a shared head, and with the rows of the classes that are mapped."""
    old = {name: i for i, (_, names) in enumerate(classes.items()) for name in names}
    if missing := [new for new, names in classes.items() if not {*names} & {*task.labels}]:
        raise ShiftError(
            f"domains: {task.name!r} has no class for {join_names(missing)}; its classes are "
            f"{join_names(task.labels)}. Name them in `classes`."
        )
    numbers = np.asarray([old.get(name, -1) for name in task.labels])
    kept: dict[str, Any] = {
        key: rows.take(np.flatnonzero(numbers[rows.labels] >= 0))
        for key, rows in row_splits(task).items()
    }
    renamed = relabelled(replace(task, **kept), list(classes), tuple(numbers.tolist()), None)
    return replace(renamed, own=())
