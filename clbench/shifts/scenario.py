"""A scenario as built: its tasks in training order, and what is to be known about them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from clbench.shifts.base import PretrainingTexts
from clbench.shifts.split import Split, SplitPart
from clbench.tasks.task import Rows, Task

__all__ = [
    "PartReport",
    "Scenario",
    "ScenarioReport",
    "Split",
    "SplitPart",
    "describe_part",
    "note_few_rows",
    "note_shared_texts",
]

PRETRAINING = "pretraining"
"""Name of the pretraining as the first task of a scenario."""
FEW_SHARED = 0.02
"""Share of the validation texts that may be training texts too before it is noted."""
FEW_ROWS = 100
"""Validation rows below which a part is noted: a score of 0.9 then varies by 0.03 or more."""


@dataclass(frozen=True)
class PartReport:
    """Sizes and label balance of one task of a scenario.

    Attributes
    ----------
    task
        Its name.
    train, validation
        Numbers of rows.
    train_labels, validation_labels
        Share of each class by name; for regression mean, standard deviation, least and
        greatest target.
    """

    task: str
    train: int
    validation: int
    train_labels: Mapping[str, float]
    validation_labels: Mapping[str, float]


@dataclass(frozen=True)
class ScenarioReport:
    """What a reader should know of a scenario before believing its scores.

    Attributes
    ----------
    parts
        One for each task, in training order.
    severity
        How well a linear classifier tells a task's rows from the next one's by their
        embeddings: cross-validated balanced accuracy, averaged over neighbouring tasks.
        0.5 = indistinguishable, 1.0 = always told apart; None if not measured.
    severities
        The same for each pair of neighbours.
    numbers
        What the shift itself reports (mean lengths, threshold, sizes of clusters).
    notes
        Sentences on what makes its scores uncertain.
    """

    parts: tuple[PartReport, ...]
    severity: float | None = None
    severities: tuple[float | None, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; numbers of NumPy become plain ones."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=_plain))
        return plain


@dataclass(frozen=True)
class Scenario:
    """Tasks in training order.

    Attributes
    ----------
    name, shift, settings
        As in the suite file, defaults filled in.
    tasks
        For a pair D_o, then D_s.
    split
        How a task was divided, or None where none was.
    report
        Sizes, label balance, severity.
    picture
        What its figure is drawn from; empty where it has none.
    pretraining
        Texts that score the pretraining as the first task of R; None where it is none.
    """

    name: str
    shift: str
    tasks: tuple[Task, ...]
    settings: Mapping[str, Any]
    split: Split | None
    report: ScenarioReport
    picture: Mapping[str, Any] = field(default_factory=dict)
    pretraining: PretrainingTexts | None = None

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Name and main metric of each column of R."""
        tasks = tuple((task.name, task.metrics[0]) for task in self.tasks)
        return tasks if self.pretraining is None else ((PRETRAINING, "accuracy"), *tasks)

    def main_scores(self, row: Sequence[Mapping[str, float] | None]) -> list[float | None]:
        """The main metric of each column of a row of R; None where it was not scored."""
        return [
            None if values is None else values[metric]
            for (_, metric), values in zip(self.columns, row, strict=True)
        ]


def describe_part(task: Task) -> PartReport:
    """Sizes and label balance of `task`."""
    return PartReport(
        task.name,
        len(task.train),
        len(task.validation),
        _balance(task, task.train),
        _balance(task, task.validation),
    )


def note_few_rows(tasks: Iterable[Task]) -> tuple[str, ...]:
    """A sentence for each task whose score rests on fewer than `FEW_ROWS` rows.

    It states the standard error at a score of 0.9: of a share, √(p(1 − p)/n), and of a
    correlation, (1 − r²)/√(n − 1) (normal data; Matthews's is a correlation too).

    SST-2 by length is the known case: its training rows are phrases and its validation rows
    whole sentences, so few of these are short.
    """
    notes = []
    for task in tasks:
        rows, metric = len(task.validation), task.metrics[0]
        if rows >= FEW_ROWS:
            continue
        if metric in ("pearson", "spearman", "matthews"):
            name, error = f"a {metric} correlation", 0.19 / max(rows - 1, 1) ** 0.5
        else:
            article = "an" if metric[0] in "aeiou" else "a"
            name, error = f"{article} {metric}", (0.9 * 0.1 / rows) ** 0.5
        notes.append(
            f"{task.name}: {rows} validation rows, so the standard error of {name} of 0.9 is "
            f"{error:.3f}"
        )
    return tuple(notes)


def note_shared_texts(tasks: Iterable[Task]) -> tuple[str, ...]:
    """A sentence for each task of whose validation texts over `FEW_SHARED` are training texts."""
    notes = []
    for task in tasks:
        known = set(_texts(task.train))
        shared = sum(text in known for text in _texts(task.validation))
        if shared > FEW_SHARED * len(task.validation):
            notes.append(
                f"{task.name}: {shared} of {len(task.validation)} validation texts are also "
                "training texts"
            )
    return tuple(notes)


def _texts(rows: Rows) -> Iterable[tuple[str, str | None]]:
    return zip(rows.first, rows.second or repeat(None, len(rows)), strict=True)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def _balance(task: Task, rows: Rows) -> dict[str, float]:
    if task.regression:
        values = rows.labels.astype(np.float64)
        return {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
        }
    counts = np.bincount(rows.labels, minlength=len(task.labels)) / len(rows)
    return dict(zip(task.labels, counts.tolist(), strict=True))
