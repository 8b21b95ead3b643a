"""Blurry boundaries: training rows of a task that come with a neighbouring one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clbench.core.errors import ShiftError
from clbench.core.seeds import numpy_stream
from clbench.tasks.task import Rows, Task


def blurred(tasks: Sequence[Task], blur: float, seed: int, where: str) -> tuple[Task, ...]:
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
