"""The item scores that the logs of one model hold."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clbench.audit.logs.formats import Entry, Setup, read_entries
from clbench.audit.scores import Floats, ItemScores, Part, keys_of
from clbench.core.errors import DataError, count, format_value, join_names
from clbench.core.registry import LARGEST

UNIT = re.compile(
    r"(^|[_/])(acc|accuracy|correct|em|(exact_|extractive_)?match|choice|includes|f1|mc\d)($|[_,@])"
)
"""Metrics that lie from 0 to 1 if a log does not say."""
GUESSED = re.compile(r"(^|_)(acc|accuracy|choice)($|[_,])")
"""Metrics of which guessing among k choices is right 1/k of the time."""
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
    prompting
        How prompts are made, in words; empty if the log does not say.
    scale
        The least and the largest score that the metric can have.
    """

    runs: Floats = field(repr=False)
    inputs: Mapping[str, str] = field(repr=False)
    prompting: str
    scale: tuple[float, float]


@dataclass(frozen=True)
class ModelLogs:
    """The item scores of one model's logs, and the metrics that are left out."""

    name: str
    scores: tuple[LoggedScores, ...]
    notes: tuple[str, ...]


def part_of(task: str) -> Part:
    """Return the axis of a task that is known by its name, else ``behaviour``."""
    name = re.split(r"[|/]", task.lower())[-1].replace("-", "_")
    axes = (part for start, part in AXES.items() if re.match(rf"({start})($|[_:])", name))
    return next(axes, "behaviour")


def read_logs(name: str, tasks: Collection[str] = ()) -> ModelLogs:
    """Return what the logs of one model hold about `tasks`, or all: a file, or those of a folder.

    Raises a DataError if a log is missing or damaged, the logs are of several models, an item has
    two results or inputs in one run, or a score is not a number in its metric's range.
    """
    runs: dict[str, dict[str, dict[str, Entry]]] = {}  # by task, run and item
    setups: dict[str, set[Setup]] = {}
    for entry in read_entries(name):
        setup = entry.setup
        setups.setdefault(setup.task, set()).add(setup)
        items = runs.setdefault(setup.task, {}).setdefault(setup.run, {})
        if (old := items.get(entry.item)) is not None:
            twice = f"{name}: item {entry.item!r} of {setup.task!r} is there twice in one run"
            if old.given != entry.given:
                raise DataError(f"{twice}, with another input. Give each item an id of its own.")
            for metric in old.scores.keys() & entry.scores.keys():
                if old.scores[metric] != entry.scores[metric]:
                    both = f"{old.scores[metric]} and {entry.scores[metric]}"
                    raise DataError(f"{twice}, with different results: {metric} is {both}.")
            entry = entry._replace(scores={**old.scores, **entry.scores})
        items[entry.item] = entry
    if len(models := {each.model for found in setups.values() for each in found} - {""}) > 1:
        names = join_names(sorted(models))
        raise DataError(f"{name}: has logs of {len(models)} models: {names}. Name those of one.")
    if missing := [task for task in tasks if task not in runs]:
        raise DataError(f"{name}: has no task {missing[0]!r}, but {join_names(runs)}.")
    notes: list[str] = []
    scores: list[LoggedScores] = []
    for task in tasks or runs:
        scores += _scores(name, [*runs[task].values()], setups[task], notes)
    if not scores or {*tasks} - {each.task for each in scores}:
        raise DataError(" ".join([f"{name}: has no scores of single items.", *notes]))
    return ModelLogs(name, tuple(scores), tuple(notes))


def _scores(
    name: str, runs: Sequence[Mapping[str, Entry]], setups: Collection[Setup], notes: list[str]
) -> Iterator[LoggedScores]:
    """Yield the scores of a task by each metric of single items, the one that decides first."""
    entries = [entry for run in runs for entry in run.values()]
    task, prompting = entries[0].setup.task, sorted({setup.prompting for setup in setups})
    if len(prompting) > 1:
        both = " and ".join(prompting)
        raise DataError(f"{name}: runs of {task!r} have {both}. Name those that have the same.")
    inputs = {entry.item: entry.given for entry in entries}
    for entry in entries:
        if inputs[entry.item] != entry.given:
            raise DataError(
                f"{name}: item {entry.item!r} of {task!r} has other inputs in other runs."
            )
    shared = [item for item in runs[0] if all(item in run for run in runs)]
    if 2 * len(shared) < len(inputs):
        raise DataError(
            f"{name}: only {len(shared)} of {len(inputs)} items of {task!r} are in all {len(runs)} "
            "runs. Name whole runs, or remove the others."
        )
    falling = {metric for setup in setups for metric in setup.falling}
    ranges = {metric: ends for setup in setups for metric, ends in setup.ranges.items()}
    choices = {entry.choices for entry in entries}
    primary = True
    for metric in dict.fromkeys(metric for entry in entries for metric in entry.scores):
        low, high = ranges.get(metric, (0, 1) if UNIT.search(metric) else (-LARGEST, LARGEST))
        columns = [_column(f"{name}: {task}", run, shared, metric, low, high) for run in runs]
        if any(column is None for column in columns):
            notes.append(f"{task}: {metric} is not a score of single items, so it is left out.")
            continue
        values = np.array(columns)
        scored = ~np.isnan(values).any(axis=0)
        if not scored.any():
            continue
        values = values[:, scored] * (-1.0 if metric in falling else 1.0)
        items = [item for item, kept in zip(shared, scored, strict=True) if kept]
        guessed = max(choices) if len(choices) == 1 and GUESSED.search(metric) else None
        yield LoggedScores(
            task,
            part_of(task),
            values.mean(axis=0),
            keys_of(f"{item}\0{inputs[item]}" for item in items),
            metric=f"{metric}, sign turned" if metric in falling else metric,
            chance=1.0 / guessed if guessed else None,
            choices=guessed or None,
            primary=primary,
            runs=values,
            inputs=inputs,
            prompting=prompting[0],
            scale=(low, high),
        )
        primary = False


def _column(
    where: str, run: Mapping[str, Entry], items: Sequence[str], metric: str, low: float, high: float
) -> Floats | None:
    """Return the scores of items, NaN where there is none; None if they are lists or the like."""
    cells = [run[item].scores.get(metric) for item in items]
    if any(isinstance(cell, list | tuple | dict) for cell in cells):
        return None
    values = np.array([np.nan if isinstance(cell, str) else cell for cell in cells], dtype=float)
    for i in (~((values >= low) & (values <= high))).nonzero()[0].tolist():
        if cells[i] is not None:
            raise DataError(
                f"{where}: {metric} of item {items[i]!r} is {format_value(cells[i])}, not a number "
                f"from {low:g} to {high:g}."
            )
    return values


def check_same(base: ModelLogs, tuned: ModelLogs) -> None:
    """Raise a DataError unless both logs have the same tasks, asked and decided in one way."""
    one, two = ({s.task: s for s in logs.scores if s.primary} for logs in (base, tuned))
    if alone := one.keys() ^ two.keys():
        has, lacks = (base, tuned) if (task := min(alone)) in one else (tuned, base)
        raise DataError(
            f"{lacks.name}: has no task {task!r}, which {has.name} has. --tasks names those to "
            f"compare; both have {join_names(sorted(one.keys() & two.keys()))}."
        )
    for task, first in one.items():
        second = two[task]
        for what, own, other in (
            ("prompts", first.prompting, second.prompting),
            ("metrics", first.metric, second.metric),
            ("scales", *("{:g} to {:g}".format(*each.scale) for each in (first, second))),
        ):
            if own and other and own != other:
                raise DataError(
                    f"{task}: different {what}: {own} in {base.name}, {other} in {tuned.name}. Run "
                    "the harness in the same way on both models."
                )
        ids = [item for item in first.inputs if item in second.inputs]
        if differ := [item for item in ids if first.inputs[item] != second.inputs[item]]:
            raise DataError(
                f"{task}: item {differ[0]!r} has one prompt in {base.name} and another in "
                f"{tuned.name} ({count(len(differ), 'such item')} of {len(ids)}). Run the harness "
                "in the same way on both models."
            )
        if len({*first.keys} & {*second.keys}) < 2:
            raise DataError(f"{task}: {base.name} and {tuned.name} have no two items in common.")
