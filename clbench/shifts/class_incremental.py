"""Class-incremental learning: the classes of one task arrive in steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from clbench.core.errors import ShiftError, did_you_mean, join_names
from clbench.core.seeds import numpy_stream
from clbench.shifts.base import ScenarioTasks, Shift, ShiftContext, row_splits
from clbench.shifts.sequence import relabelled, share_head
from clbench.tasks.spec import LabelName
from clbench.tasks.task import Rows, Task

Classes = Annotated[list[LabelName], Field(min_length=1)]


def _check_form(value: Any) -> Any:
    if isinstance(value, list) and any(not isinstance(item, list) for item in value):
        raise PydanticCustomError(
            "classes", 'must be a list of lists, such as [["a", "b"], ["c"]], or lists by name'
        )
    steps = dict(enumerate(value, 1)) if isinstance(value, list) else value
    if isinstance(steps, dict):
        for step, names in steps.items():
            if names == []:
                raise PydanticCustomError(
                    "classes", "step {step} has no class: leave it out", {"step": repr(step)}
                )
    return value


Groups = Annotated[
    list[Classes] | dict[str, Classes], Field(min_length=2), BeforeValidator(_check_form)
]


class ClassIncremental(Shift):
    """The classes of a task, or of several, in steps, with one growing head.

    Each step is a task with the rows of its classes. The score is accuracy over all classes seen
    so far, without knowledge of the step; besides, cells hold that with it (``told``, known as
    task-incremental) and the share of rows taken for classes of another step (``elsewhere``).

    Give `task` or `tasks`, and one of `steps`, `classes` and `partition`.

    Attributes
    ----------
    task, tasks
        Name of the task, or names of tasks, whose rows and classes are put together. A class that
        has the name of another one gets that of its task in front: ``ag_news: Sports``.
    without
        Names of classes to leave out with their rows.
    steps
        Number of steps, over which the classes are divided evenly in an order drawn by
        `order_seed`.
    classes
        Names of the classes of each step: a list of lists, or lists by names of steps.
    partition
        A TOML file with a list of classes for each name of a step, such as ``kitchen = ["recipe",
        "calories"]``: a path relative to the suite file, or the name of a packaged file
        (``clinc150-domains``). A suite reads it into `classes`.
    order_seed
        Seed of the order of classes, or for `classes` of the steps, which otherwise come as given.
    """

    name = "class-incremental"
    short_name: ClassVar[str | None] = "classes"

    task: Annotated[str, Field(min_length=1)] | None = None
    tasks: Annotated[list[str], Field(min_length=2)] | None = None
    without: Classes | None = None
    steps: Annotated[int, Field(ge=2)] | None = None
    classes: Groups | None = None
    partition: str | None = None
    order_seed: Annotated[int, Field(ge=0)] | None = None

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the steps in order.

        Raises
        ------
        ShiftError
            If the steps do not divide the classes of the task.
        """
        task = self._task(context)
        groups = self._groups(task)
        order = [name for names in groups.values() for name in names]
        numbers = {name: number for number, name in enumerate(task.labels)}
        classes = np.asarray([numbers[name] for name in order])
        arrival = np.argsort(classes)  # of each class of the task
        steps, start = [], 0
        for name, names in groups.items():
            own = tuple(range(start, start + len(names)))
            start += len(names)
            part = _rows_of(task, classes[list(own)], f"{task.name}[{name}]", self._where)
            steps.append(_as_step(part, order, own, arrival))
        sizes = [len(names) for names in groups.values()]
        return ScenarioTasks(tuple(steps), numbers={"classes_by_step": sizes})

    @property
    def k(self) -> int:
        """The number of steps."""
        return self.steps or len(self.classes or ()) or 1

    @property
    def _where(self) -> str:
        return f"class-incremental steps of {self.task or '+'.join(self.tasks or ())!r}"

    def _task(self, context: ShiftContext) -> Task:
        """Return the task whose classes arrive in steps, or all tasks as one."""
        if (self.task is None) == (self.tasks is None):
            raise ShiftError("shift 'class-incremental': give either task or tasks.")
        names = self.tasks or [self.task or ""]
        for name in names:
            if names.count(name) > 1:
                raise ShiftError(f"{self._where}: {name!r} is there twice. Name each task once.")
        parts = [context.task(name) for name in names]
        for part in parts:
            if not part.labels or part.train.choices:
                raise ShiftError(
                    f"{self._where}: {part.name!r} has no classes. Name one with classes."
                )
        whole = parts[0] if len(parts) == 1 else self._joined(parts)
        if self.without is None:
            return whole
        for name in self.without:
            if name not in whole.labels:
                hint = did_you_mean(name, whole.labels)
                raise ShiftError(f"{self._where}: the task has no class {name!r}.{hint}")
        kept = [i for i, name in enumerate(whole.labels) if name not in self.without]
        numbers = np.cumsum([name not in self.without for name in whole.labels]) - 1
        splits: dict[str, Any] = {}
        for key, rows in row_splits(whole).items():
            rows = rows.take(np.flatnonzero(np.isin(rows.labels, kept)))
            splits[key] = replace(rows, labels=numbers[rows.labels])
        return replace(whole, labels=tuple(whole.labels[i] for i in kept), **splits)

    def _joined(self, parts: list[Task]) -> Task:
        """Return the rows and classes of `parts` as one task."""
        if any(part.is_pair for part in parts):
            raise ShiftError(f"{self._where}: only tasks of one text a row can be put together.")
        metrics = [m for m in parts[0].metrics if all(m in part.metrics for part in parts)]
        if not metrics:
            raise ShiftError(f"{self._where}: the tasks have no metric in common.")
        shared = share_head(parts, growing=False)
        splits: dict[str, Any] = {
            key: Rows.joined([row_splits(part)[key] for part in shared])
            for key in row_splits(shared[0])
        }
        name = "+".join(part.name for part in parts)
        head = shared[0].head
        return replace(shared[0], name=name, metrics=tuple(metrics), head=head, own=(), **splits)

    def _groups(self, task: Task) -> Mapping[str, list[str]]:
        """Return the classes of each step by its name, checked, in training order."""
        if (self.steps is None) == (self.classes is None):
            raise ShiftError(f"{self._where}: give either steps, or classes or a partition.")
        if self.steps is not None:
            if self.steps > len(task.labels):
                raise ShiftError(
                    f"{self._where}: {self.steps} steps, but the task has {len(task.labels)} "
                    "classes. Lower steps."
                )
            rng = numpy_stream("classes", task.name, self.order_seed or 0)
            order = [task.labels[i] for i in rng.permutation(len(task.labels))]
            parts = np.array_split(np.arange(len(order)), self.steps)
            return {f"{n}": [order[i] for i in part] for n, part in enumerate(parts, 1)}
        assert self.classes is not None
        groups = (
            self.classes
            if isinstance(self.classes, dict)
            else {f"{number}": names for number, names in enumerate(self.classes, 1)}
        )
        self._check(groups, task)
        if self.order_seed is not None:
            names = list(groups)
            rng = numpy_stream("steps", task.name, self.order_seed)
            groups = {names[i]: groups[names[i]] for i in rng.permutation(len(names))}
        return groups

    def _check(self, groups: Mapping[str, list[str]], task: Task) -> None:
        """Raise a ShiftError unless every class is in one step."""
        counts = Counter(name for names in groups.values() for name in names)
        for name, count in counts.items():
            if name not in task.labels:
                hint = did_you_mean(name, task.labels)
                raise ShiftError(f"{self._where}: the task has no class {name!r}.{hint}")
            if count > 1:
                raise ShiftError(f"{self._where}: class {name!r} is in {count} places. Keep one.")
        if missing := [name for name in task.labels if name not in counts]:
            raise ShiftError(
                f"{self._where}: {len(missing)} of {len(task.labels)} classes are in no step: "
                f"{join_names(missing)}. Add them to a step."
            )


def _rows_of(task: Task, classes: Any, name: str, where: str) -> Task:
    """Return the rows of some classes as a task of its own."""
    parts: dict[str, Any] = {}
    for split, rows in row_splits(task).items():
        parts[split] = rows.take(np.flatnonzero(np.isin(rows.labels, classes)))
        present = set(parts[split].labels.tolist())
        if missing := [task.labels[c] for c in classes if c not in present]:
            raise ShiftError(
                f"{where}: {name!r} has no {split} rows of {join_names(missing)}. Use more rows "
                "(a larger --limit or tuning_fraction)."
            )
    return replace(task, name=name, **parts)


def _as_step(part: Task, order: list[str], own: tuple[int, ...], arrival: Any) -> Task:
    """Return a part with its classes numbered in order of arrival, and the growing head."""
    whole = relabelled(part, order, tuple(arrival.tolist()), own[-1] + 1, part.head)
    return replace(whole, own=own)
