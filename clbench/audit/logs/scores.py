"""The item scores that the logs of one model hold."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clbench.audit.logs.formats import FORMATS, Entry, Setup, reader_of
from clbench.audit.scores import Floats, ItemScores, Part, keys_of
from clbench.core.errors import DataError, count, describe_missing, format_value, join_names
from clbench.core.files import user_path
from clbench.core.registry import LARGEST

UNIT = re.compile(
    r"(^|[_/ ])(acc|accuracy|em|exact_match|extractive_match|choice|match|includes|f1|mc[12])($|[_,/@])"
)
"""Names of metrics that lie between 0 and 1 if a log does not say."""
GUESSED = re.compile(r"(^|[_/])(acc|accuracy|choice)($|[_,/])")
"""Names of metrics of which one choice of k is right 1/k of the time by guessing."""
AXES: Sequence[tuple[str, Part]] = (
    ("mmlu|arc|truthfulqa", "knowledge"),
    ("bbh|bigbench_hard|hellaswag|winogrande|copa", "reasoning"),
    ("gsm8k|gsm_plus|svamp|asdiv|mgsm", "arithmetic"),
    ("ifeval|ifbench", "instructions"),
    ("boolq|multirc|drop|squad|race", "reading"),
)
"""Names that tasks of an axis begin with, in any harness."""


@dataclass(frozen=True, kw_only=True)
class LoggedScores(ItemScores):
    """Item scores of a log; `scores` are means over runs.

    Attributes
    ----------
    runs
        Shape (runs, n): the scores of each run.
    inputs
        Digests of the inputs by the harness's id.
    prompting
        How prompts are made, in words; empty if it is not known.
    dropped
        Items without a score in every run.
    """

    runs: Floats = field(repr=False)
    inputs: Mapping[str, str] = field(repr=False)
    prompting: str
    dropped: int


@dataclass(frozen=True)
class ModelLogs:
    """The item scores of one model's logs, and what a reader should know of them."""

    name: str
    scores: tuple[LoggedScores, ...]
    notes: tuple[str, ...]


def part_of(task: str) -> Part:
    """Return the axis of a task that is known by its name, else ``behaviour``."""
    name = re.split(r"[|/]", task.lower().removesuffix("/"))[-1].replace("-", "_")
    return next(
        (part for start, part in AXES if re.match(rf"({start})($|[_:])", name)), "behaviour"
    )


def read_logs(name: str, tasks: Collection[str] = ()) -> ModelLogs:
    """Return what the logs of one model hold: a file, or all files of a folder.

    Parameters
    ----------
    tasks
        The tasks to return, if not all.

    Raises
    ------
    DataError
        If a log is missing or damaged, the files belong to several models, an item has two results
        or inputs in one run, or a score is not a number of its metric's range.
    """
    runs: dict[str, dict[str, dict[str, Entry]]] = {}  # by task, run and item
    setups: dict[str, dict[Setup, None]] = {}
    last = None
    for entry in _entries(name):
        if (setup := entry.setup) is not last:
            setups.setdefault(setup.task, {})[setup] = None
            last = setup
        items = runs.setdefault(setup.task, {}).setdefault(setup.run, {})
        items[entry.item] = _merged(items[entry.item], entry) if entry.item in items else entry
    if len(models := {s.model: None for each in setups.values() for s in each if s.model}) > 1:
        raise DataError(
            f"{name}: holds logs of {len(models)} models: {join_names(models)}. Name the folder or "
            "the file of one."
        )
    if missing := [task for task in tasks if task not in runs]:
        raise DataError(f"{name}: has no task {missing[0]!r}, but {join_names(runs)}.")
    notes: list[str] = []
    found = [
        each
        for task in tasks or runs
        for each in _task_scores(name, task, runs[task], setups[task], notes)
    ]
    if not found:
        raise DataError(f"{name}: has no scores of single items. {' '.join(notes)}".strip())
    return ModelLogs(name, tuple(found), tuple(notes))


def _entries(name: str) -> Iterator[Entry]:
    """Yield the entries of a log, or of all logs in a folder."""
    path = user_path(name, "log")
    if not path.exists():
        raise DataError(f"{describe_missing(path, 'log')}")
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    readers = [(file, reader) for file in files if file.is_file() and (reader := reader_of(file))]
    found = False
    for fallback in (False, True):
        for file, reader in readers:
            if reader.fallback == fallback:
                for entry in reader(file):
                    found = True
                    yield entry
        if found:
            return
    patterns = join_names(dict.fromkeys(FORMATS.get(each).pattern for each in FORMATS))
    raise DataError(f"{path}: there is no log with items. Logs are files such as {patterns}.")


def _merged(old: Entry, new: Entry) -> Entry:
    """Return one entry of two on an item, in one run."""
    item = (
        f"{new.where}: item {new.item!r} of {new.setup.task!r} is there twice, first in {old.where}"
    )
    if old.given != new.given:
        raise DataError(f"{item}, with another input. Give each item an id of its own.")
    for metric in old.scores.keys() & new.scores.keys():
        if old.scores[metric] != new.scores[metric]:
            values = f"{old.scores[metric]} and {new.scores[metric]}"
            raise DataError(f"{item}, with different results: {metric} is {values}. Remove one.")
    return old._replace(scores={**old.scores, **new.scores})


def _task_scores(
    name: str,
    task: str,
    runs: Mapping[str, Mapping[str, Entry]],
    setups: Collection[Setup],
    notes: list[str],
) -> Iterator[LoggedScores]:
    """Yield the scores of a task by each metric of single items, the one that decides first."""
    if len(prompting := {setup.prompting for setup in setups}) > 1:
        raise DataError(f"{name}: runs of {task!r} have {' and '.join(sorted(prompting))}.")
    first, *others = runs.values()
    inputs = {item: entry.given for item, entry in first.items()}
    for run in others:
        check_inputs(task, inputs, {item: entry.given for item, entry in run.items()}, name, name)
    shared = [item for item in first if all(item in run for run in others)]
    largest = max(map(len, runs.values()))
    if 2 * len(shared) < largest:
        raise DataError(
            f"{name}: of the {largest} items of {task!r}, only {len(shared)} are in all "
            f"{len(runs)} runs. Name the files of whole runs, or remove the others."
        )
    metrics = dict.fromkeys(metric for setup in setups for metric in setup.metrics)
    metrics |= dict.fromkeys(
        m for run in runs.values() for each in run.values() for m in each.scores
    )
    falling = frozenset[str]().union(*(setup.falling for setup in setups))
    ranges = {metric: ends for setup in setups for metric, *ends in setup.ranges}
    choices = {entry.choices for entry in first.values()}
    primary = True
    for metric in metrics:
        entries = [[run[item] for item in shared] for run in runs.values()]
        columns = [_column(metric, column, ranges.get(metric)) for column in entries]
        if any(column is None for column in columns):
            notes.append(f"{task}: {metric} is no score of single items, so it is left out.")
            continue
        values = np.stack([column for column in columns if column is not None])
        scored = ~np.isnan(values).any(axis=0)
        if not scored.any():
            continue
        values = values[:, scored] * (-1.0 if metric in falling else 1.0)
        items = [item for item, kept in zip(shared, scored, strict=True) if kept]
        guessed = bool(GUESSED.search(metric)) and len(choices) == 1 and max(choices) > 1
        yield LoggedScores(
            task,
            part_of(task),
            values.mean(axis=0),
            keys_of(f"{item}\0{inputs[item]}" for item in items),
            metric=f"{metric} (sign turned)" if metric in falling else metric,
            chance=1.0 / max(choices) if guessed else None,
            choices=max(choices) if guessed else None,
            primary=primary,
            runs=values,
            inputs=inputs,
            prompting=next(iter(prompting)),
            dropped=len({item for run in runs.values() for item in run}) - len(items),
        )
        primary = False


def _column(metric: str, entries: Sequence[Entry], ends: Sequence[float] | None) -> Floats | None:
    """Return the scores of entries, NaN where there is none; None if they are no numbers.

    Raises a DataError if one is a text, not finite or out of the metric's range.
    """
    cells = [entry.scores.get(metric) for entry in entries]
    if any(isinstance(cell, list | dict | tuple) for cell in cells):
        return None
    low, high = ends or ((0.0, 1.0) if UNIT.search(metric) else (-LARGEST, LARGEST))
    try:
        values = np.array(cells, dtype=np.float64)
        wrong = ~((values >= low) & (values <= high) & (np.abs(values) <= LARGEST))
    except (TypeError, ValueError):
        wrong = np.array([isinstance(cell, str) for cell in cells])
    for i in wrong.nonzero()[0]:
        if cells[i] is not None:
            raise DataError(
                f"{entries[i].where}: {metric} of item {entries[i].item!r} is "
                f"{format_value(cells[i])}, not a number from {low:g} to {high:g}."
            )
    return values


def check_inputs(
    task: str, one: Mapping[str, str], two: Mapping[str, str], first: str, second: str
) -> None:
    """Raise a DataError if items of one id have different inputs."""
    if differ := [item for item in one if item in two and one[item] != two[item]]:
        raise DataError(
            f"{task}: item {differ[0]!r} has one input in {first} and another in {second} "
            f"({count(len(differ), 'such item')}). Use the same prompts, shots and version of the "
            "task for all models."
        )
