"""Sequences of tasks, each with its own head or all with one."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from clbench.core.errors import ShiftError
from clbench.shifts.base import ScenarioTasks, Shift, ShiftContext
from clbench.shifts.split import row_splits
from clbench.tasks.task import Task

SHARED = "shared"
"""Name of the head that tasks share."""


class Sequence(Shift):
    """Tasks one after another, in one order or in several.

    Attributes
    ----------
    tasks
        Names of two or more tasks, in training order.
    order
        Name of the order, if there are several: a suite gives ``orders = { a = [...], b = [...] }``
        instead of `tasks`, and has a scenario for each, called ``NAME-ORDER``.
    head
        ``own``: each task has a head, so the task of a row is told. ``shared``: one head for all
        classes, with which the model must find out (de Masson d'Autume et al. 2019). Tasks with
        equal lists of classes share these.
    growing
        Whether a shared head begins with the classes of the first task and grows with each other
        one, instead of having all classes from the start.
    """

    name = "sequence"
    short_name: ClassVar[str | None] = ""

    tasks: Annotated[list[str], Field(min_length=2)]
    order: str | None = None
    head: Literal["own", "shared"] = "own"
    growing: bool = False

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the tasks in order.

        Raises
        ------
        ShiftError
            If a task without classes would share a head, or a head that is not shared would grow.
        """
        if self.growing and self.head == "own":
            raise ShiftError("only a shared head can grow. Set head = 'shared', or remove growing.")
        loaded = {name: context.task(name) for name in self.tasks}
        tasks = [loaded[name] for name in self.tasks]
        if self.head == "own":
            return ScenarioTasks(tuple(replace(task, head=task.name) for task in tasks))
        return ScenarioTasks(share_head(tasks, growing=self.growing))


def share_head(tasks: Items[Task], *, growing: bool) -> tuple[Task, ...]:
    """Return the tasks with one head for all their classes, in order of arrival.

    Tasks with equal lists of classes share them; a class of another list that has the same name
    gets that of its task in front.
    """
    owners: dict[tuple[str, ...], Task] = {}
    for task in tasks:
        if not task.labels or task.train.choices:
            raise ShiftError(
                f"task {task.name!r} has no classes that other tasks could have, so it cannot "
                "share a head. Use head = 'own'."
            )
        owners.setdefault(task.labels, task)
    names = [name for labels in owners for name in labels]
    starts: dict[tuple[str, ...], int] = {}
    classes: list[str] = []
    for labels, task in owners.items():
        starts[labels] = len(classes)
        classes += [f"{task.name}: {name}" if names.count(name) > 1 else name for name in labels]
    shared, seen = [], 0
    for task in tasks:
        start, count = starts[task.labels], len(task.labels)
        seen = max(seen, start + count)
        own = tuple(range(start, start + count))
        shared.append(relabelled(task, classes, own, seen if growing else None))
    return tuple(shared)


def relabelled(
    task: Task, classes: Items[str], own: tuple[int, ...], seen: int | None, head: str = SHARED
) -> Task:
    """Return a task whose class number i is number ``own[i]`` of `classes`, with a shared head."""
    numbers = np.asarray(own, dtype=np.int64)
    splits: dict[str, Any] = {
        key: replace(rows, labels=numbers[rows.labels]) for key, rows in row_splits(task).items()
    }
    return replace(task, labels=tuple(classes), own=own, seen=seen, head=head, **splits)
