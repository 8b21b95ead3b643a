"""Scores computed from the score matrix, and tables of cells and of means over seeds.

R[i][j] is the score on task j after stage i, 0-based; with T tasks, L = T - 1 is the last stage.
f[j] is the floor of task j: the score of always predicting the majority class. P[i][j] is the score
of a linear probe of task j on the features after stage i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from clbench.results.formulas import (
    Curves,
    Floors,
    Metrics,
    Probes,
    Triangle,
    area,
    average_over_time,
    backward_transfer,
    features_forgetting,
    forward_transfer,
    gain,
    gap,
    head_gap,
    mean_forgetting,
    mean_metric,
    plasticity,
)

if TYPE_CHECKING:
    import pandas as pd

    from clbench.results.cell import CellResult

Matrix = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Score:
    """A score. Add one by adding an entry to `SCORES`.

    Attributes
    ----------
    name, label, meaning
        Column of ``scores.csv`` and key in cell files; heading in tables; explanation.
    formula
        Function of `Triangle` and of what it `needs`; None for a `ratio`.
    needs
        What else `formula` takes, of the options of `scores_of`. Such scores are not in the cell
        files.
    ratio
        Names of the two scores whose quotient it is. Tables over seeds show the quotient of the
        sums, since the quotient of a single seed is noisy.
    higher_is_better
        Direction, for verdicts.
    single_task
        Whether the score is defined for a scenario of one task.
    visibility
        When the terminal and the report show a column for it, if it has a value: always, for
        ``pairs`` (on the page also for longer sequences), for ``sequences`` of more than two tasks,
        for these on the ``page`` only, or never.
    compared
        Whether the report compares methods by it.
    """

    name: str
    label: str
    meaning: str
    formula: Callable[..., float | None] | None
    higher_is_better: bool = True
    single_task: bool = False
    needs: tuple[Literal["alone", "curves", "floors", "metrics", "probes", "reference"], ...] = ()
    ratio: tuple[str, str] | None = None
    visibility: Literal["always", "pairs", "sequences", "page", "never"] = "never"
    compared: bool = False


SCORES = (
    # p_o and p_s: Kenneweg et al. 2022, section 3
    Score("p_o", "p_o", "score on the old task", lambda r: r[-1][0],
          visibility="always", compared=True),
    Score("p_s", "p_s", "score on the new task", lambda r: r[-1][-1],
          single_task=True, visibility="always", compared=True),
    Score("p", "p", "p_o + p_s", lambda r: r[-1][0] + r[-1][-1]),
    Score("p_o_before", "p_o before", "p_o before any later task", lambda r: r[0][0]),
    Score("forgetting", "forgetting", "score lost on the first task", lambda r: r[0][0] - r[-1][0],
          higher_is_better=False, visibility="pairs", compared=True),
    # Lopez-Paz & Ranzato 2017, equation 3: mean over j < L of R[L, j] - R[j, j]
    Score("bwt", "BWT", "backward transfer", backward_transfer, visibility="sequences"),
    Score("average", "average", "mean score over all tasks", lambda r: sum(r[-1]) / len(r),
          single_task=True, visibility="sequences"),
    # Rebuffi et al. 2017, section 4: mean over i of the mean over j <= i of R[i, j]
    Score("average_over_time", "over time", "mean, over the stages, of the mean score over the "
          "tasks so far", average_over_time, visibility="sequences"),
    # Koh et al. 2022, section 3.2, over training steps
    Score("area", "area", "mean score over the tasks so far, over all training steps: the area "
          "under its curve", lambda _, curves: area(curves), needs=("curves",),
          visibility="page"),
    # Chaudhry et al. 2018, section 3: mean over j < L of max over j <= l < L of R[l, j] - R[L, j]
    Score("mean_forgetting", "mean forg.", "mean drop of the earlier tasks from their best score",
          mean_forgetting, higher_is_better=False, visibility="sequences"),
    # Means over j of metrics[L, j]; Kim et al. 2022 (arXiv 2211.02633), section 3: within-task and
    # task-id prediction
    Score("told", "task-IL", "mean final accuracy among the classes of a row’s own task, as if the "
          "task were told (task-incremental)", lambda _, metrics: mean_metric(metrics, "told"),
          needs=("metrics",), visibility="always"),
    Score("elsewhere", "wrong task", "mean final share of rows taken for a class of another task",
          lambda _, metrics: mean_metric(metrics, "elsewhere"), needs=("metrics",),
          higher_is_better=False, visibility="always"),
    # Chaudhry et al. 2018, section 3: R*[L] - R[L, L]
    Score("intransigence", "intrans.", "score on the last task when trained alone, minus p_s",
          lambda r, alone: gap(r, alone, [len(r) - 1]),
          higher_is_better=False, single_task=True, needs=("alone",), visibility="always"),
    # Mean over j > 0 of R[j, j] - R*[j]
    Score("plasticity", "plasticity", "mean, over the later tasks, of the score right after the "
          "task, minus that when trained alone", plasticity,
          needs=("alone",), visibility="page"),
    # Sums over j < L of R[j, j] - f[j] and of R[L, j] - f[j]
    Score("old_gain", "old gain", "sum of the scores of the earlier tasks above their floors, each "
          "right after the task", needs=("floors",),
          formula=lambda r, floors: gain([r[j][j] for j in range(len(r) - 1)], floors[:-1])),
    Score("old_gain_left", "old gain left", "sum of the final scores of the earlier tasks above "
          "their floors", needs=("floors",),
          formula=lambda r, floors: gain(r[-1][:-1], floors[:-1])),
    # R[L, L] - f[L], of the method and of the reference method
    Score("new_gain", "new gain", "p_s above its floor", needs=("floors",), single_task=True,
          formula=lambda r, floors: gain(r[-1][-1:], floors[-1:])),
    Score("reference_gain", "reference gain", "p_s of the reference method above its floor",
          single_task=True, needs=("floors", "reference"),
          formula=lambda r, floors, reference: gain([reference], floors[-1:])),
    Score("retained", "retained", "share of what was learned of the earlier tasks above their "
          "floors that is left at the end", None,
          ratio=("old_gain_left", "old_gain"), visibility="always"),
    Score("learned", "learned", "p_s above its floor, as a share of the reference method’s", None,
          ratio=("new_gain", "reference_gain"), single_task=True, visibility="always"),
    # Mean over j < L of P[j, j] - P[L, j] and of P[L, j] - R[L, j]
    Score("features_forgetting", "features forget", "score that linear probes of the earlier tasks "
          "lost: what the features forgot", features_forgetting, needs=("probes",),
          higher_is_better=False, visibility="always"),
    Score("head_gap", "head gap", "final score of linear probes of the earlier tasks, minus that "
          "of the heads: what the heads miss in the features", head_gap, needs=("probes",),
          higher_is_better=False, visibility="always"),
    # Mean over j > 0 of P[j - 1, j] - P of the pretrained model (Lopez-Paz & Ranzato 2017, eq. 4)
    Score("forward_transfer", "FWT", "score of a linear probe of each later task right before the "
          "task, minus that of the pretrained model", forward_transfer, needs=("probes",),
          visibility="always"),
)  # fmt: skip
"""All scores in the order of their columns."""
SCORE: Mapping[str, Score] = {score.name: score for score in SCORES}
CELL_SCORES = {score.name for score in SCORES if not (score.needs or score.ratio)}
"""Names of the scores that a cell's file holds."""

COSTS = ("train_seconds", "training_memory_mb", "peak_memory_mb", "search_seconds")
GROUP = ("scenario", "shift", "method", "model")
MARKS: Mapping[str, tuple[str, str]] = {
    "keeps_rows": ("*", "keeps rows of earlier tasks, which the other methods may not see"),
    "needs_task_id": (
        "#",
        "is told the task of each row at test time, even where tasks share a head",
    ),
}
"""Flags of a method, each with the sign that marks it in tables, and the footnote."""
COLUMNS = (*GROUP, "seed", "tasks", *SCORE, *COSTS, *MARKS, "status", "reason")


def marks(flags: Iterable[str]) -> str:
    """Return the signs of `flags`, with a leading space if there are any."""
    signs = "".join(MARKS[flag][0] for flag in flags)
    return f" {signs}" if signs else ""


def scores_of(
    matrix: Matrix,
    *,
    alone: Mapping[int, float] = MappingProxyType({}),
    curves: Sequence[Curves] = (),
    floors: Floors | None = None,
    metrics: Metrics = (),
    probes: Probes = (),
    reference: float | None = None,
    file_scores: Mapping[str, float | None] = MappingProxyType({}),
) -> dict[str, float | None]:
    """Return the scores of one cell by name; most are None for a single task.

    Scores that need what is not given are left out.

    Parameters
    ----------
    matrix
        T rows of T entries; only those above the diagonal may be None.
    alone
        R*[j], the score of task j when trained alone, by j.
    curves
        For each stage the points (step, score) of each task so far.
    floors
        The floor of each task; None where it has none.
    metrics
        All metrics of each task after the last stage.
    probes
        Scores of linear probes: a row before training, then one for each stage.
    reference
        The reference method's score on the last task, p_s.
    file_scores
        Scores of the cell file, which are not computed again.

    Raises
    ------
    ValueError
        If the matrix is empty, not square or lacks an entry on or below the diagonal.
    """
    r: Triangle = [[v for v in row[: i + 1] if v is not None] for i, row in enumerate(matrix)]
    square = all(len(row) == len(matrix) for row in matrix)
    if not r or not square or any(len(row) != i for i, row in enumerate(r, 1)):
        raise ValueError("a score matrix must be square, with every score up to its diagonal")
    options = {
        "alone": alone or None,
        "curves": curves if curves and all(curves) else None,
        "floors": floors or None,
        "metrics": metrics or None,
        "probes": probes or None,
        "reference": reference,
    }
    scores = dict(file_scores)
    for score in SCORES:
        if score.name in file_scores:
            continue
        values = [options[name] for name in score.needs]
        if None in values or (score.ratio and not scores.keys() >= set(score.ratio)):
            continue
        scores[score.name] = None
        if len(r) > 1 or score.single_task:
            if score.ratio:
                scores[score.name] = _quotient([scores], score.ratio)
            elif score.formula:
                scores[score.name] = score.formula(r, *values)
    return scores


def _quotient(rows: Iterable[Mapping[Any, Any]], names: tuple[str, str]) -> float | None:
    """Return Σ first / Σ second over the rows that have both.

    None if Σ second is not above 0, apart from rounding errors.
    """
    pairs = [[row.get(name) for name in names] for row in rows]
    pairs = [pair for pair in pairs if not any(v is None or math.isnan(v) for v in pair)]
    first, second = (math.fsum(values) for values in zip(*pairs, strict=True)) if pairs else (0, 0)
    return first / second if second > 1e-9 else None


def reference_score(cell: CellResult) -> float | None:
    """Return R* of a single-task reference: the only score in its only row."""
    return next((score for row in cell.R for score in row if score is not None), None)


def visible_scores(means: Iterable[Mapping[Any, Any]], *, page: bool = False) -> list[Score]:
    """Return the scores that a table of `means`, rows of `summary`, shows: those with a value."""
    rows = list(means)
    shown = {"always"}
    if any(row["tasks"] > 2 for row in rows):
        shown |= {"sequences", "page"} if page else {"sequences"}
    if page or any(row["tasks"] <= 2 for row in rows):
        shown.add("pairs")

    def is_visible(score: Score) -> bool:
        return score.visibility in shown and has_value(rows, f"{score.name}_mean")

    return list(filter(is_visible, SCORES))


def has_value(rows: Iterable[Mapping[Any, Any]], name: str) -> bool:
    """Whether a row has a number in the column `name`."""
    return any(row[name] is not None and not math.isnan(row[name]) for row in rows)


def score_rows(cells: Iterable[CellResult], reference: str = "vanilla") -> list[dict[str, Any]]:
    """Return a row for each cell, in the cells' order, with the keys of `COLUMNS`.

    ``method`` is the baseline's name, since two baselines may share a method. Single-task
    references have no row of their own; they give scores such as intransigence to the cells of the
    same scenario, seed and protocol, and the baseline `reference` gives them ``learned``. Rows of
    failed cells have no keys for scores.
    """
    all_cells = list(cells)
    alone: dict[Any, dict[int, float]] = {}
    last_scores: dict[Any, float | None] = {}
    for cell in all_cells:
        if cell.status == "ok" and cell.reference_of is not None:
            if (score := reference_score(cell)) is not None:
                alone.setdefault(_reference_key(cell), {})[cell.reference_of] = score
        elif cell.status == "ok" and cell.baseline == reference:
            last_scores[_reference_key(cell)] = cell.R[-1][-1]
    return [
        _row(cell, alone.get(_reference_key(cell), {}), last_scores.get(_reference_key(cell)))
        for cell in all_cells
        if cell.reference_of is None
    ]


def scores_frame(cells: Iterable[CellResult], reference: str = "vanilla") -> pd.DataFrame:
    """Return `score_rows` as a table; scores are floats, NaN where missing."""
    import pandas as pd

    frame = pd.DataFrame(score_rows(cells, reference), columns=list(COLUMNS))
    numbers: dict[str, Any] = dict.fromkeys((*SCORE, *COSTS), "float64")
    flags = dict.fromkeys(MARKS, "bool")
    return frame.astype({**numbers, "seed": "int64", "tasks": "int64", **flags})


def _reference_key(cell: CellResult) -> tuple[str, int, str, str]:
    """Return what a cell shares with its references; a report may hold several protocols."""
    return cell.scenario, cell.seed, cell.model, str(cell.settings.get("protocol"))


def _row(cell: CellResult, alone: Mapping[int, float], reference: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "scenario": cell.scenario,
        "shift": cell.shift,
        "method": cell.baseline,
        "model": cell.model,
        "seed": cell.seed,
        "tasks": len(cell.tasks),
        "train_seconds": cell.train_seconds,
        "training_memory_mb": cell.training_memory_mb,
        "peak_memory_mb": cell.peak_memory_mb,
        "search_seconds": cell.search.get("seconds"),
        **{flag: getattr(cell, flag) for flag in MARKS},
        "status": cell.status,
        "reason": cell.reason or "",
    }
    if cell.status == "ok":
        # The pretraining, where it is the first task, has no stage and no reference.
        before = len(cell.tasks) - len(cell.stages)
        shifted = {stage + before: score for stage, score in alone.items()}
        row |= cell_scores(cell, alone=shifted, reference=reference)
    return row


def cell_scores(cell: CellResult, **others: Any) -> dict[str, float | None]:
    """Return the scores of a finished cell, those of its file and those added later.

    `others` are what `scores_of` needs from other cells.
    """
    return scores_of(
        cell.R,
        curves=[dict(stage)["curves"].get("scores", {}) for stage in cell.stages],
        floors=cell.floors,
        metrics=cell.metrics[-1] if cell.metrics else (),
        probes=cell.probes,
        file_scores=cell.scores,
        **others,
    )


def means(rows: Iterable[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over seeds, a row for each scenario × method.

    `rows` come from `score_rows`. The keys are those of `GROUP`, tasks, ``seeds`` (finished cells),
    ``failed`` (failed cells), those of `MARKS`, and for each score and cost ``NAME_mean`` and
    ``NAME_std`` (ddof 1; NaN for a single seed). A score that is a `Score.ratio` has the quotient
    of the sums over seeds as its mean, and no standard deviation.
    """
    groups: dict[tuple[Any, ...], list[Mapping[Any, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in GROUP), []).append(row)
    table = []
    for names, group in groups.items():
        good = [row for row in group if row["status"] == "ok"]
        entry = {
            **dict(zip(GROUP, names, strict=True)),
            "tasks": max(row["tasks"] for row in group),
            "seeds": len(good),
            "failed": len(group) - len(good),
            **{flag: any(row[flag] for row in group) for flag in MARKS},
        }
        for name in (*SCORE, *COSTS):
            values = [v for row in good if (v := row.get(name)) is not None and not math.isnan(v)]
            n = len(values)
            mean = math.fsum(values) / n if n else math.nan
            if name in SCORE and (ratio := SCORE[name].ratio):
                quotient, n = _quotient(good, ratio), 0
                mean = math.nan if quotient is None else quotient
            squares = math.fsum((value - mean) ** 2 for value in values)
            entry[f"{name}_mean"] = mean
            entry[f"{name}_std"] = math.sqrt(squares / (n - 1)) if n > 1 else math.nan
        table.append(entry)
    return table


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `means` of the rows of `scores_frame` as a table."""
    import pandas as pd

    columns = [*GROUP, "tasks", "seeds", "failed", *MARKS]
    columns += [f"{name}_{part}" for name in (*SCORE, *COSTS) for part in ("mean", "std")]
    return pd.DataFrame(means(frame.to_dict("records")), columns=columns)


def failures(cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """Return key and reason of every failed cell, references included."""
    return [
        (cell.key, cell.reason or "no reason recorded") for cell in cells if cell.status == "failed"
    ]


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table as CSV text; floats are written so that they read back unchanged."""
    return str(frame.to_csv(index=False, lineterminator="\n"))
