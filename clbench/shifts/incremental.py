"""One head for one list of classes, which arrive in steps or from one domain after another."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Discriminator, Field, Tag

from clbench.core.errors import ShiftError, count, did_you_mean, join_names
from clbench.core.seeds import numpy_stream
from clbench.shifts.base import ScenarioTasks, Shift, ShiftContext
from clbench.shifts.dataset import answering, default_prompt, renumbered, share_head
from clbench.tasks.spec import LabelName
from clbench.tasks.task import Rows, Task

Classes = Annotated[list[LabelName], Field(min_length=1)]
AtLeastTwo = Field(min_length=2)
Groups = Annotated[
    Annotated[list[Classes], AtLeastTwo, Tag("list")]
    | Annotated[dict[str, Classes], AtLeastTwo, Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, dict) else "list"),
]
"""The classes of each step: a list of lists, or lists by names of steps."""


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
        has the name of another one gets that of its task in front: ``ag_news: Sports``. A language
        model reads the tasks' prompt if they have the same one, else the default prompt.
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
        steps = []
        for step, names in groups.items():
            numbers = [order.index(name) if name in names else -1 for name in task.labels]
            own = tuple(map(order.index, names))
            part = replace(task, name=f"{task.name}[{step}]")
            part = renumbered(part, order, numbers, own=own, seen=own[-1] + 1, head=task.head)
            for split, rows in part.splits.items():
                if missing := _missing(rows, part, own):
                    raise ShiftError(
                        f"{self._where}: {part.name!r} has no {split} rows of "
                        f"{join_names(missing)}. Use more rows (a larger limit or "
                        "tuning_fraction)."
                    )
            steps.append(part)
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
        tasks = _load(context, self.tasks or [self.task or ""], self._where)
        task = tasks[0] if len(tasks) == 1 else self._joined(tasks)
        if self.without is None:
            return task
        _check_classes({"without": [*{*self.without}]}, task.labels, self._where)
        kept = [name for name in task.labels if name not in self.without]
        numbers = [kept.index(name) if name in kept else -1 for name in task.labels]
        return renumbered(task, kept, numbers, head=task.head)

    def _joined(self, tasks: list[Task]) -> Task:
        """Return the rows and classes of `tasks` as one task."""
        if any(task.is_pair for task in tasks):
            raise ShiftError(f"{self._where}: only tasks of one text a row can be put together.")
        metrics = [m for m in tasks[0].metrics if all(m in task.metrics for task in tasks)]
        if not metrics:
            raise ShiftError(f"{self._where}: the tasks have no metric in common.")
        shared = share_head(tasks, growing=False)
        rows: dict[str, Any] = {
            split: Rows.joined([task.splits[split] for task in shared])
            for split in shared[0].splits
        }
        first = shared[0]
        if len({task.effective_template.pieces for task in shared}) > 1:
            first = default_prompt(first)
        name = "+".join(task.name for task in tasks)
        return replace(first, name=name, metrics=tuple(metrics), own=(), **rows)

    def _groups(self, task: Task) -> Mapping[str, list[str]]:
        """Return the classes of each step by its name, checked, in training order."""
        if (self.steps is None) == (self.classes is None):
            raise ShiftError(f"{self._where}: give either steps, or classes or a partition.")
        labels = task.labels
        if self.steps is not None:
            if self.steps > len(labels):
                raise ShiftError(
                    f"{self._where}: {self.steps} steps, but the task has {len(labels)} "
                    "classes. Lower steps."
                )
            rng = numpy_stream("classes", task.name, self.order_seed or 0)
            parts = np.array_split(rng.permutation(len(labels)), self.steps)
            return {f"{n}": [labels[i] for i in part] for n, part in enumerate(parts, 1)}
        given = self.classes or {}
        groups = given if isinstance(given, dict) else {f"{n}": g for n, g in enumerate(given, 1)}
        _check_classes(groups, labels, self._where)
        if missing := set(labels).difference(*groups.values()):
            raise ShiftError(
                f"{self._where}: {len(missing)} of {len(labels)} classes are in no step: "
                f"{join_names(name for name in labels if name in missing)}. Add them to a step."
            )
        if self.order_seed is None:
            return groups
        order = numpy_stream("steps", task.name, self.order_seed).permutation(len(groups))
        return {name: groups[name] for name in (list(groups)[i] for i in order)}


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
        A language model's answers are those of the first task, where it has the name.
    """

    name = "domain-incremental"
    short_name: ClassVar[str | None] = "domains"

    task: str | None = None
    by: str | None = None
    domains: Annotated[list[LabelName], Field(min_length=2)] | None = None
    tasks: Annotated[list[str], Field(min_length=2)] | None = None
    classes: Annotated[dict[str, Classes], Field(min_length=2)] | None = None

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
            return ScenarioTasks(self._of_tasks(_load(context, self.tasks, "domains")))
        if self.task is None or self.by is None or self.tasks or self.classes:
            raise ShiftError(
                "shift 'domain-incremental': give task, by and domains; or tasks, and perhaps "
                "classes."
            )
        return self._of_column(context.task(self.task), self.by, context)

    def _of_column(self, task: Task, by: str, context: ShiftContext) -> ScenarioTasks:
        """Return the parts of a task by the column `by`."""
        where, cells = f"domains of {task.name!r} by {by!r}", context.column(task.name, by)
        domains: dict[str, Any] = {}
        for split, rows in task.splits.items():
            domain_of = cells["validation" if split == "validation" else "train"]
            domains[split] = np.asarray([domain_of.get(int(i), "") for i in rows.index])
        present = sorted(set(domains["train"].tolist()) - {""})
        names = self.domains
        if names is None:
            raise ShiftError(
                f"{where}: give the domains in training order, as `domains`. There are "
                f"{len(present)}: {join_names(present)}."
            )
        for name in names:
            if name not in present:
                raise ShiftError(
                    f"{where}: no training row has {name!r}.{did_you_mean(name, present)}"
                )
        if len(set(names)) < len(names):
            raise ShiftError(f"{where}: {join_names(names)} are not all different. Name each once.")
        parts = []
        for name in names:
            rows_of = {s: rows.where(domains[s] == name) for s, rows in task.splits.items()}
            part = replace(task, name=f"{task.name}[{name}]", **rows_of)  # type: ignore[arg-type]
            _check_domain(part, f"{where}: {name!r}", "Leave it out of `domains`, or add rows.")
            parts.append(part)
        every = np.concatenate(list(domains.values()))
        nowhere, elsewhere = int((every == "").sum()), int((~np.isin(every, [*names, ""])).sum())
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
        """Return the tasks with one list of classes."""
        first = tasks[0]
        mapping = self.classes or {name: [name] for name in first.labels}
        _check_classes(mapping, {label for task in tasks for label in task.labels}, "domains")
        answers = {name: first.effective_template.answer(name) for name in mapping}
        number_of = {name: i for i, names in enumerate(mapping.values()) for name in names}
        parts = []
        for task in tasks:
            if self.classes is None and sorted(task.labels) != sorted(first.labels):
                raise ShiftError(
                    f"domains {join_names(self.tasks or ())}: {task.name!r} has the classes "
                    f"{join_names(task.labels)}, {first.name!r} has {join_names(first.labels)}. "
                    "Map them in `classes`."
                )
            if missing := [new for new, old in mapping.items() if not {*old} & {*task.labels}]:
                raise ShiftError(
                    f"domains: {task.name!r} has no class for {join_names(missing)}; its classes "
                    f"are {join_names(task.labels)}. Name them in `classes`."
                )
            part = answering(task, answers)
            part = renumbered(part, list(mapping), [number_of.get(n, -1) for n in task.labels])
            _check_domain(part, f"domains: {part.name!r}", "Raise limit, or leave it out.")
            parts.append(part)
        return tuple(parts)


def _load(context: ShiftContext, names: list[str], where: str) -> list[Task]:
    """Return tasks by name; raise a ShiftError unless they differ and have classes."""
    for name in names:
        if names.count(name) > 1:
            raise ShiftError(f"{where}: {name!r} is there twice. Name each task once.")
    tasks = [context.task(name) for name in names]
    for task in tasks:
        if not task.can_share_head:
            raise ShiftError(
                f"{where}: {task.name!r} has no classes that tasks can share. Name one with "
                "classes."
            )
    return tasks


def _check_classes(groups: Mapping[str, list[str]], known: Collection[str], where: str) -> None:
    """Raise a ShiftError if a class in `groups` does not exist, or is there twice."""
    owners: dict[str, str] = {}
    for group, names in groups.items():
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ShiftError(f"{where}: there is no class {name!r}.{hint}")
            if name in owners:
                both = " and ".join(map(repr, dict.fromkeys((owners[name], group))))
                raise ShiftError(
                    f"{where}: class {name!r} is twice in `classes`, in {both}. Name it once."
                )
            owners[name] = group


def _missing(rows: Rows, task: Task, classes: Sequence[int]) -> list[str]:
    """Return the names of those `classes` that have none of `rows`."""
    present = set(rows.labels.tolist())
    return [task.labels[number] for number in classes if number not in present]


def _check_domain(part: Task, where: str, advice: str) -> None:
    """Raise a ShiftError if no training row of a domain has one of the classes."""
    if missing := _missing(part.train, part, range(len(part.labels))):
        raise ShiftError(
            f"{where} has no training row of the {'class' if len(missing) == 1 else 'classes'} "
            f"{join_names(missing)}, so it cannot teach all classes. {advice}"
        )
