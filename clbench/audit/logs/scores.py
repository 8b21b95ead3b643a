"""The item scores that the logs of one model hold."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clbench.audit.logs.formats import Metric, read_entries
from clbench.audit.scores import Floats, ItemScores, Part, keys_of
from clbench.core.errors import DataError, count, format_value, join_names
from clbench.core.registry import LARGEST

UNIT = re.compile(
    r"(^|[_/])(acc|accuracy|correct|em|(exact_|extractive_)?match|choice|includes|f1|mc\d)($|[_,@])"
)
"""Metrics that lie from 0 to 1 if a log does not say."""
GUESSED = re.compile(r"(^|_)(acc|accuracy|choice)($|[_,])")
"""Metrics of which guessing among k choices is right 1/k of the time."""
PARTS = (list, tuple, dict)
"""What is logged of an item for a metric that only the whole task has."""
AXES: Mapping[str, Part] = {
    "mmlu|arc|truthfulqa": "knowledge",
    "bbh|bigbench_hard|hellaswag|winogrande|copa": "reasoning",
    "gsm8k|gsm_plus|svamp|asdiv|mgsm": "arithmetic",
    "ifeval|ifbench": "instructions",
    "boolq|multirc|drop|squad|race": "reading",
}
"""How names of tasks of an axis begin."""


@dataclass(frozen=True, kw_only=True)
class LoggedScores(ItemScores):
    """Item scores of a log, means over runs.

    Attributes
    ----------
    runs
        Shape (runs, n): the scores of each run.
    inputs
        Digests of the inputs by the harness's id.
    made
        What must be equal to compare two models, in words; empty where the log does not say.
    """

    runs: Floats = field(repr=False)
    inputs: Mapping[str, str] = field(repr=False)
    made: Mapping[str, str]


@dataclass(frozen=True)
class ModelLogs:
    """The item scores of one model's logs, and the metrics that are left out."""

    name: str
    scores: tuple[LoggedScores, ...]
    notes: tuple[str, ...]


@dataclass
class _Logged:
    """What is logged of a task: scores by metric, run and item, and digests of inputs by item."""

    scores: dict[Metric, dict[str, dict[str, Any]]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    choices: set[int] = field(default_factory=set)
    prompting: set[str] = field(default_factory=set)


def part_of(task: str) -> Part:
    """Return the axis of a task that is known by its name, else ``behaviour``."""
    name = re.split(r"[|/]", task.lower())[-1].replace("-", "_")
    axes = (part for start, part in AXES.items() if re.match(rf"({start})($|[_:])", name))
    return next(axes, "behaviour")


def read_logs(name: str, tasks: Collection[str] = ()) -> ModelLogs:
    """Return what the logs of one model hold about `tasks`, or all: a file, or those of a folder.

    Raises a DataError if a log is missing or damaged, the logs are of several models, an item has
    two results in one run or two inputs, or a score is not a number in its metric's range.
    """
    logged: dict[str, _Logged] = defaultdict(_Logged)
    models = set()
    for entry in read_entries(name):
        if not entry.task:
            raise DataError(f"{name}: item {entry.item!r} has no task. Give it one.")
        task = logged[entry.task]
        models.add(entry.model)
        task.choices.add(entry.choices)
        task.prompting.add(entry.prompting)
        if task.inputs.setdefault(entry.item, entry.given) != entry.given:
            ways = " and ".join(sorted(filter(None, task.prompting)))
            raise DataError(
                f"{name}: item {entry.item!r} of {entry.task!r} has two inputs"
                f"{ways and f', with {ways}'}. Name runs that ask in one way, or give each item an "
                "id of its own."
            )
        for metric, value in entry.scores.items():
            items = task.scores.setdefault(metric, {}).setdefault(entry.run, {})
            if (old := items.setdefault(entry.item, value)) is not value and old != value:
                raise DataError(
                    f"{name}: item {entry.item!r} of {entry.task!r} has different results in one "
                    f"run: {metric.name} is {old} and {value}."
                )
    if len(models := models - {""}) > 1:
        names = join_names(sorted(models))
        raise DataError(f"{name}: has logs of {len(models)} models: {names}. Name those of one.")
    if missing := [task for task in tasks if task not in logged]:
        raise DataError(f"{name}: has no task {missing[0]!r}, but {join_names(logged)}.")
    notes: list[str] = []
    scores = [each for task in tasks or logged for each in _scores(name, task, logged[task], notes)]
    if not scores or {*tasks} - {each.task for each in scores}:
        raise DataError(" ".join([f"{name}: has no scores of single items.", *notes]))
    return ModelLogs(name, tuple(scores), tuple(notes))


def _scores(name: str, task: str, logged: _Logged, notes: list[str]) -> Iterator[LoggedScores]:
    """Yield the scores of a task by each metric of single items, the one that decides first."""
    primary = True
    for metric, by_run in logged.scores.items():
        first, *others = runs = [*by_run.values()]
        items = [item for item in first if all(item in run for run in others)]
        if 2 * len(items) < (most := max(map(len, runs))):
            raise DataError(
                f"{name}: only {len(items)} of {most} items of {task!r} are in all {len(runs)} "
                "runs. Name whole runs, or remove the others."
            )
        low, high = (0.0, 1.0) if UNIT.search(metric.name) else (-LARGEST, LARGEST)
        low = low if metric.low is None else metric.low
        high = high if metric.high is None else metric.high
        cells = [[run[item] for item in items] for run in runs]
        filled = [cell for row in cells for cell in row if cell is not None]
        if filled and all(isinstance(cell, PARTS) for cell in filled):
            notes.append(
                f"{task}: {metric.name} is not a score of single items, so it is left out."
            )
            continue
        for i, cell in ((i, cell) for row in cells for i, cell in enumerate(row)):
            if cell is not None and (isinstance(cell, (str, *PARTS)) or not low <= cell <= high):
                raise DataError(
                    f"{name}: {task}: {metric.name} of item {items[i]!r} is {format_value(cell)}, "
                    f"not a number from {low:g} to {high:g}."
                )
        values = np.array(cells, dtype=float)
        scored = ~np.isnan(values).any(axis=0)
        if not scored.any():
            continue
        values = values[:, scored] * (-1.0 if metric.falling else 1.0)
        kept = [item for item, has in zip(items, scored, strict=True) if has]
        label = f"{metric.name}, sign turned" if metric.falling else metric.name
        guessed = len(logged.choices) == 1 and GUESSED.search(metric.name) is not None
        choices = (max(logged.choices) or None) if guessed else None
        yield LoggedScores(
            task,
            part_of(task),
            values.mean(axis=0),
            keys_of(f"{item}\0{logged.inputs[item]}" for item in kept),
            metric=label,
            chance=1.0 / choices if choices else None,
            choices=choices,
            primary=primary,
            runs=values,
            inputs=logged.inputs,
            made={
                "prompts": " and ".join(sorted(logged.prompting)),
                "metrics": label,
                "scales": f"{low:g} to {high:g}",
            },
        )
        primary = False


def check_same(base: ModelLogs, tuned: ModelLogs) -> None:
    """Raise a DataError unless both logs have the same tasks, asked and decided in one way."""
    one, two = ({s.task: s for s in logs.scores if s.primary} for logs in (base, tuned))
    if alone := one.keys() ^ two.keys():
        has, lacks = (base, tuned) if (task := min(alone)) in one else (tuned, base)
        raise DataError(
            f"{lacks.name}: has no task {task!r}, which {has.name} has. --tasks names those to "
            f"compare; both have {join_names(sorted(one.keys() & two.keys()))}."
        )
    same = "Run the harness in the same way on both models."
    for task, first in one.items():
        second = two[task]
        for what, own in first.made.items():
            if own and (other := second.made[what]) and own != other:
                raise DataError(
                    f"{task}: different {what}: {own} in {base.name}, {other} in {tuned.name}. "
                    f"{same}"
                )
        ids = first.inputs.keys() & second.inputs.keys()
        if differ := sorted(item for item in ids if first.inputs[item] != second.inputs[item]):
            raise DataError(
                f"{task}: item {differ[0]!r} has one prompt in {base.name} and another in "
                f"{tuned.name} ({count(len(differ), 'such item')} of {len(ids)}). {same}"
            )
        if len({*first.keys} & {*second.keys}) < 2:
            raise DataError(f"{task}: {base.name} and {tuned.name} have no two items in common.")
