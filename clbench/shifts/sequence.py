"""Shifts between tasks: sequences in one or several orders, and rows that blur into neighbours."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from clbench.core.errors import ShiftError
from clbench.core.seeds import numpy_stream
from clbench.shifts.base import ScenarioTasks, Shift, ShiftContext, row_splits
from clbench.tasks.task import Rows, Task

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


def blurred(tasks: Items[Task], blur: float, seed: int, where: str) -> tuple[Task, ...]:
    """Return the tasks after a share of the training rows of each one went to its neighbours.

    Of each task, ``round(blur · rows)`` rows drawn by `seed` leave: half of them to the task
    before, half to the task after; all of them where there is only one neighbour. Every row stays
    in the stream once, and scored rows do not move. A growing head has the classes of the next
    task one stage earlier, as their first rows come then.

    Tasks whose classes are mixed at a fixed share are known as a blurry setup (Bang et al. 2021,
    Rainbow Memory), where the rows go to all other tasks.

    Raises
    ------
    ShiftError
        If the tasks do not share a head, or their rows have different columns; `where` begins the
        message.
    """
    kinds = {(len(task.train.columns), bool(task.train.choices)) for task in tasks}
    if len({task.head for task in tasks}) > 1 or len(tasks) < 2:
        raise ShiftError(
            f"{where}: blur moves rows between tasks that share a head; here each task has its "
            "own. Use head = 'shared', or no blur."
        )
    if len(kinds) > 1 or any(choices for _, choices in kinds):
        raise ShiftError(
            f"{where}: blur cannot mix rows of one text with pairs or multiple choice. Leave it "
            "out, or use other tasks."
        )
    received: list[list[Rows]] = [[] for _ in tasks]
    for i, task in enumerate(tasks):
        order = numpy_stream("blur", task.name, seed).permutation(len(task.train))
        leaving, staying = np.split(order, [round(blur * len(order))])
        neighbours = [j for j in (i - 1, i + 1) if 0 <= j < len(tasks)]
        received[i].append(task.train.take(np.sort(staying)))
        for j, part in zip(neighbours, np.array_split(leaving, len(neighbours)), strict=True):
            received[j].append(task.train.take(np.sort(part)))
    seen = [task.seen for task in tasks]
    return tuple(
        replace(task, train=Rows.joined(rows), seen=later)
        for task, rows, later in zip(tasks, received, [*seen[1:], seen[-1]], strict=True)
    )
