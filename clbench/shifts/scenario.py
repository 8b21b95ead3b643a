"""Build a scenario: its tasks in training order, checked, with a report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from clbench.core.errors import PluginError, ShiftError, count, format_value, join_names
from clbench.core.files import plain
from clbench.core.seeds import numpy_stream, stream_seed
from clbench.shifts.base import SHIFTS, ColumnSpec, ScenarioTasks, ShiftContext, Split
from clbench.shifts.dataset import blurred
from clbench.tasks.task import Rows, Task

FEW_SHARED = 0.02
"""Share of validation texts that may also be training texts without a note."""
FEW_ROWS = 100
"""Validation rows below which a task gets a note: a score of 0.9 then varies by 0.03 or more."""


@dataclass(frozen=True)
class ScenarioReport:
    """What a reader should know about a scenario before trusting its scores.

    Attributes
    ----------
    parts
        For each task, in training order, its name, the numbers of rows to train on and to score,
        and the balance of their labels: the share of each class by name, or the mean, standard
        deviation, minimum and maximum of targets. ``validation`` stands for the scored rows.
    severity
        How well a linear classifier separates the embeddings of a task from those of the next
        one: cross-validated balanced accuracy, averaged over neighbouring tasks.
        0.5 = indistinguishable, 1.0 = always distinguishable; None if not measured.
    severities
        The same for each pair of neighbouring tasks.
    numbers
        Numbers that the shift reports (mean lengths, threshold, sizes of clusters).
    notes
        Sentences about what makes its scores uncertain.
    """

    parts: tuple[Mapping[str, Any], ...]
    severity: float | None = None
    severities: tuple[float | None, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values, without NumPy types or NaN."""
        report: dict[str, Any] = plain(asdict(self))
        return report


@dataclass(frozen=True)
class Scenario:
    """A scenario that is ready; attributes as in `ScenarioTasks` and the suite file.

    `tasks` are in training order: D_o, then D_s; `settings` include the defaults;
    `extra_columns` are the columns of R before those of the tasks.
    """

    name: str
    shift: str
    tasks: tuple[Task, ...]
    settings: Mapping[str, Any]
    split: Split | None
    report: ScenarioReport
    picture: Mapping[str, Any] = field(default_factory=dict)
    extra_columns: tuple[ColumnSpec, ...] = ()

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Name and main metric of each column of R."""
        return (
            *((column.name, column.metric) for column in self.extra_columns),
            *((task.name, task.metrics[0]) for task in self.tasks),
        )

    def main_scores(self, row: Sequence[Mapping[str, float] | None]) -> list[float | None]:
        """Return the main metric of each column of a row of R; None for columns not scored."""
        return [
            None if values is None else values[metric]
            for (_, metric), values in zip(self.columns, row, strict=True)
        ]


def build_scenario(
    name: str,
    shift_name: str,
    settings: Mapping[str, Any],
    context: ShiftContext,
    *,
    severity: bool = True,
) -> Scenario:
    """Build and check the scenario `name` of a suite, and describe it in a report.

    Unless `severity` is false, it is measured, which embeds up to 1000 rows of each task.

    Raises
    ------
    UnknownNameError, SettingsError
        If the shift or its settings are wrong.
    ShiftError
        If a part has no rows, or rows of one class only.
    PluginError
        If a plug-in's shift does not return tasks.
    """
    shift = SHIFTS.get(shift_name)(**settings)
    try:
        result = shift.build(context)
    except ShiftError as error:
        raise ShiftError(f"scenario {name!r}: {error}") from error
    built = ScenarioTasks(tuple(result)) if isinstance(result, Sequence) else result
    tasks: tuple[Task, ...] = getattr(built, "tasks", ())
    if not tasks or not all(isinstance(task, Task) for task in tasks):
        raise PluginError(
            f"shift {shift_name!r}: build must return a list with at least one Task, not "
            f"{format_value(result)}."
        )
    for task in tasks:
        _check_rows(name, task)
    if shift.blur:
        tasks = blurred(tasks, shift.blur, context.seed, f"scenario {name!r}")
    by_pair = severities(tasks, context) if severity and len(tasks) > 1 else ()
    values = [value for value in by_pair if value is not None]
    parts = [
        {
            "task": task.name,
            "train": len(task.train),
            "validation": len(task.scored),
            "train_labels": _balance(task, task.train),
            "validation_labels": _balance(task, task.scored),
        }
        for task in tasks
    ]
    severity_of_all = float(np.mean(values)) if values else None
    notes = tuple(dict.fromkeys([*built.notes, *uncertainties(tasks)]))
    report = ScenarioReport(tuple(parts), severity_of_all, by_pair, built.numbers, notes)
    settings, picture, columns = shift.settings(), built.picture, built.columns
    return Scenario(name, shift_name, tasks, settings, built.split, report, picture, columns)


def uncertainties(tasks: Sequence[Task]) -> Iterator[str]:
    """Yield sentences about rows left out, few scored rows, torn groups, and what says nothing.

    These are scored rows that are also training rows, and targets that are all equal.
    Below `FEW_ROWS` rows it states the standard error at a score of 0.9: √(p(1 − p)/n) of a
    share, (1 − r²)/√(n − 1) of a correlation (normal data), Matthews's included.
    """
    for task in tasks:
        rows, metric = len(task.scored), task.metrics[0]
        if rows >= FEW_ROWS:
            continue
        if metric in ("pearson", "spearman", "matthews"):
            error = 0.19 / max(rows - 1, 1) ** 0.5
        else:
            error = (0.9 * 0.1 / rows) ** 0.5
        yield (
            f"{task.name}: {rows} {_scored_split(task)} rows, so a score of 0.9 ({metric}) has a "
            f"standard error of {error:.3f}"
        )
    for task in tasks:
        for split, number in task.source.get("blank", {}).items():
            if number:
                name = task.name.partition("[")[0]
                yield f"{name}: {count(number, f'{split} row')} without text left out (skip_blank)"
        if task.group_metrics and (torn := task.scored.torn_groups):
            yield (
                f"{task.name}: {count(torn, 'group')} of {_scored_split(task)} rows "
                f"{'lacks' if torn == 1 else 'lack'} some rows (limits, or the shift), which can "
                f"only raise {join_names(task.group_metrics)}"
            )
        if task.regression and np.ptp(task.scored.labels) == 0:
            yield (
                f"{task.name}: all {len(task.scored)} {_scored_split(task)} targets are equal, so "
                "every correlation with them counts as 0"
            )
        training, scored = (
            list(zip(*rows.texts, strict=True)) for rows in (task.train, task.scored)
        )
        shared = sum(map(set(training).__contains__, scored))
        if shared > FEW_SHARED * len(scored):
            yield (
                f"{task.name}: {shared} of {len(scored)} {_scored_split(task)} texts are also "
                "training texts"
            )


def _scored_split(task: Task) -> str:
    return "validation" if task.tuning is None else "tuning"


def _check_rows(scenario: str, task: Task) -> None:
    """Raise a ShiftError if a split of a task is empty or has rows of one class only."""
    for split, rows in task.splits.items():
        where = f"scenario {scenario!r}: the {split} rows of {task.name!r}"
        remedy = "Use more rows (a larger limit or tuning_fraction), or change the shift."
        if len(rows) == 0:
            raise ShiftError(f"{where} would be empty. {remedy}")
        if task.labels and not task.own and len(np.unique(rows.labels)) == 1:
            label = task.labels[int(rows.labels[0])]
            raise ShiftError(f"{where} ({len(rows)}) would all be of class {label!r}. {remedy}")


def _balance(task: Task, rows: Rows) -> dict[str, float]:
    if task.regression:
        values = rows.labels.astype(np.float64)
        numbers = {"mean": values.mean(), "std": values.std()}
        numbers |= {"min": values.min(), "max": values.max()}
        return {name: float(value) for name, value in numbers.items()}
    if task.free_text:
        return {}
    counts = np.bincount(rows.labels, minlength=len(task.labels)) / len(rows)
    shares = dict(zip(task.labels, counts.tolist(), strict=True))
    if not task.own:
        return shares
    return {name: shares[name] for i, name in enumerate(task.labels) if i in task.own or counts[i]}


MOST_ROWS = 1000
"""Maximum training rows of each task to compare."""
FOLDS = 5


def severities(tasks: tuple[Task, ...], context: ShiftContext) -> tuple[float | None, ...]:
    """Return the severity between each task and the next one; see `separability`.

    It is 0.5 for two tasks with the same texts, whatever their labels.
    """
    texts, points = [], []
    for task in tasks:
        rows = task.train.sample(MOST_ROWS, numpy_stream("severity rows", task.name, context.seed))
        texts.append(sorted(zip(*rows.texts, strict=True)))
        points.append(context.embed(rows))
    values: list[float | None] = []
    for i, (one, other) in enumerate(pairwise(tasks)):
        seed = stream_seed("severity", one.name, other.name, context.seed) % 2**32
        same = texts[i] == texts[i + 1]
        values.append(0.5 if same else separability(points[i], points[i + 1], seed))
    return tuple(values)


def separability(
    first: np.typing.NDArray[np.float32], second: np.typing.NDArray[np.float32], seed: int
) -> float | None:
    """Return the cross-validated balanced accuracy of linear discriminant analysis.

    0.5 = indistinguishable, 1.0 = always distinguishable; below 0.5 only by chance. None if a
    set has fewer than three distinct rows.

    `first` and `second` are embeddings, shapes (n, h) and (m, h), with equal weight; `seed`
    decides the folds. Ledoit-Wolf shrinkage of the covariance (2004) needs no tuning, and fewer
    rows than dimensions suffice.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_val_predict

    points = np.concatenate([first, second]).astype(np.float64)
    sets = np.repeat([0, 1], [len(first), len(second)])
    groups = np.unique(points, axis=0, return_inverse=True)[1].ravel()  # NumPy 2.0: a column
    distinct = [np.unique(groups[sets == number]) for number in (0, 1)]
    folds = min(FOLDS, *map(len, distinct))
    if folds < 3:
        return None
    # A point in both sets must not be in a training fold and a test fold at once.
    shared = np.intersect1d(distinct[0], distinct[1]).size > 0
    predicted = cross_val_predict(
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=(0.5, 0.5)),
        points,
        sets,
        groups=groups if shared else None,
        cv=(StratifiedGroupKFold if shared else StratifiedKFold)(
            folds, shuffle=True, random_state=seed
        ),
    )
    return float(balanced_accuracy_score(sets, predicted))
