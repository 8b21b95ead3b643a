"""The scores that are computed from the score matrix, and the tables of cells and their means.

R[i][j] is the score on task j after stage i, 0-based; with T tasks, L = T - 1 is the last stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from clbench.results.cell import CellResult

if TYPE_CHECKING:
    import pandas as pd

Matrix = Sequence[Sequence[float | None]]
Triangle = list[list[float]]
"""R on and below the diagonal: row i has i + 1 entries."""


@dataclass(frozen=True)
class Score:
    """One score. A new one needs nothing but an entry in `SCORES`.

    Attributes
    ----------
    name, label, meaning
        Column of ``scores.csv`` and key in the cell files, head of a column, and explanation.
    formula
        Function of `Triangle`, and with `reference` also of R*[L], the score of the last task when
        trained alone. Scores with a reference are not in the cell files.
    higher_is_better
        Direction, for verdicts.
    single_task
        Whether it is defined for a scenario of one task.
    visibility
        In which runs the terminal and the page have a column for it: all, those with sequences of
        more than two tasks, those with a value for it, or none.
    compared
        Whether methods are compared by it.
    """

    name: str
    label: str
    meaning: str
    formula: Callable[..., float]
    higher_is_better: bool = True
    single_task: bool = False
    reference: bool = False
    visibility: Literal["always", "sequences", "present", "never"] = "never"
    compared: bool = False


def _bwt(r: Triangle) -> float:
    last = len(r) - 1
    return sum(r[last][task] - r[task][task] for task in range(last)) / last


def _mean_forgetting(r: Triangle) -> float:
    last = len(r) - 1
    best = [max(r[stage][task] for stage in range(task, last)) for task in range(last)]
    return sum(best[task] - r[last][task] for task in range(last)) / last


SCORES = (
    # p_o and p_s: Kenneweg et al. 2022, section 3
    Score("p_o", "p_o", "score on the old task", lambda r: r[-1][0],
          visibility="always", compared=True),
    Score("p_s", "p_s", "score on the new task", lambda r: r[-1][-1],
          single_task=True, visibility="always", compared=True),
    Score("p", "p", "p_o + p_s", lambda r: r[-1][0] + r[-1][-1]),
    Score("p_o_before", "p_o before", "score on the old task before the others", lambda r: r[0][0]),
    Score("forgetting", "forgetting", "score lost on the first task", lambda r: r[0][0] - r[-1][0],
          higher_is_better=False, visibility="always", compared=True),
    # Lopez-Paz & Ranzato 2017, equation 3: mean over j < L of R[L, j] - R[j, j]
    Score("bwt", "BWT", "backward transfer", _bwt, visibility="sequences"),
    Score("average", "average", "mean score over all tasks", lambda r: sum(r[-1]) / len(r),
          single_task=True, visibility="sequences"),
    # Chaudhry et al. 2018, section 3: mean over j < L of max over j <= l < L of R[l, j] - R[L, j]
    Score("mean_forgetting", "mean forgetting", "mean score lost since the best", _mean_forgetting,
          higher_is_better=False),
    # Chaudhry et al. 2018, section 3: R*[L] - R[L, L]
    Score("intransigence", "intrans.", "score on the last task trained alone, less that here",
          lambda r, alone: alone - r[-1][-1],
          higher_is_better=False, single_task=True, reference=True, visibility="present"),
)  # fmt: skip
"""All scores in the order of their columns.

Forward transfer is left out: it is not defined for heads that were not trained yet.
"""
SCORE: Mapping[str, Score] = {score.name: score for score in SCORES}

COSTS = ("train_seconds", "training_memory_mb", "peak_memory_mb", "search_seconds")
GROUP = ("scenario", "shift", "method", "model")
COLUMNS = (*GROUP, "seed", "tasks", *SCORE, *COSTS, "keeps_rows", "status", "reason")


def scores_of(matrix: Matrix, alone: float | None = None) -> dict[str, float | None]:
    """Return the scores of one cell by name; for a single task most are None.

    Parameters
    ----------
    matrix
        T rows of T entries; only those above the diagonal may be None.
    alone
        R*[L], the score of the last task when trained alone. Without it the scores that need it
        are left out.

    Raises
    ------
    ValueError
        If the matrix is empty, not square or lacks an entry on or below the diagonal.
    """
    r: Triangle = [[v for v in row[: i + 1] if v is not None] for i, row in enumerate(matrix)]
    square = all(len(row) == len(matrix) for row in matrix)
    if not r or not square or any(len(row) != i for i, row in enumerate(r, 1)):
        raise ValueError("a score matrix must be square, with every score up to its diagonal")
    scores: dict[str, float | None] = {}
    for score in SCORES:
        if not score.reference:
            scores[score.name] = score.formula(r) if len(r) > 1 or score.single_task else None
        elif alone is not None:
            scores[score.name] = score.formula(r, alone)
    return scores


def reference_score(cell: CellResult) -> float | None:
    """Return R* of a single-task reference: the only score in its only row."""
    scores = [score for score in cell.R[-1] if score is not None] if cell.R else []
    return scores[0] if len(scores) == 1 else None


def shown_scores(means: Iterable[Mapping[Any, Any]]) -> list[Score]:
    """Return the scores that a table of `means`, rows of `summary`, has columns for."""
    rows = list(means)

    def is_shown(score: Score) -> bool:
        if score.visibility == "present":
            return any(not math.isnan(row[f"{score.name}_mean"]) for row in rows)
        long = score.visibility == "sequences" and any(row["tasks"] > 2 for row in rows)
        return long or score.visibility == "always"

    return list(filter(is_shown, SCORES))


def scores_frame(cells: Iterable[CellResult]) -> pd.DataFrame:
    """Return a table of `COLUMNS` with a row for each cell, in the cells' order.

    The column ``method`` holds the baseline's name, since two baselines may share a method.
    Single-task references have no row; the scores that need one are filled in where the reference
    of the same scenario, seed and protocol is among the cells. Missing scores are NaN.
    """
    import pandas as pd

    every = list(cells)
    alone = {
        (*_place(cell), cell.reference_of): reference_score(cell)
        for cell in every
        if cell.reference_of is not None and cell.status == "ok"
    }
    rows = []
    for cell in every:
        if cell.reference_of is None:
            # The pretraining, where it is the first task, has no stage and no reference.
            last = (len(cell.stages) or len(cell.tasks)) - 1
            rows.append(_row(cell, alone.get((*_place(cell), last))))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers: dict[str, Any] = dict.fromkeys((*SCORE, *COSTS), "float64")
    return frame.astype({**numbers, "seed": "int64", "tasks": "int64", "keeps_rows": "bool"})


def _place(cell: CellResult) -> tuple[str, int, str, str]:
    """Return what a cell shares with its reference; one report may hold several protocols."""
    return cell.scenario, cell.seed, cell.model, str(cell.settings.get("protocol"))


def _row(cell: CellResult, alone: float | None) -> dict[str, Any]:
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
        "keeps_rows": cell.keeps_rows,
        "status": cell.status,
        "reason": cell.reason or "",
    }
    if cell.status == "ok":
        # Files of earlier versions lack the scores that were added since.
        row |= scores_of(cell.R, alone) | cell.scores
    return row


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over seeds, a row for each scenario × method.

    `frame` comes from `scores_frame`. The columns are those of `GROUP`, tasks, ``seeds`` (finished
    cells), ``failed`` (failed cells), keeps_rows, and for each score and cost ``NAME_mean`` and
    ``NAME_std`` (ddof 1; NaN for a single seed).
    """
    import pandas as pd

    columns = [*GROUP, "tasks", "seeds", "failed", "keeps_rows"]
    columns += [f"{name}_{part}" for name in (*SCORE, *COSTS) for part in ("mean", "std")]
    rows = []
    for names, group in frame.groupby(list(GROUP), sort=False, dropna=False):
        good = group[group["status"] == "ok"]
        failed, keeps_rows = len(group) - len(good), bool(group["keeps_rows"].any())
        row = [*names, int(group["tasks"].max()), len(good), failed, keeps_rows]
        for name in (*SCORE, *COSTS):
            row += [good[name].mean(), good[name].std(ddof=1)]
        rows.append(row)
    return pd.DataFrame(rows, columns=columns)


def failures(cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """Return key and reason of every failed cell, references included."""
    return [
        (cell.key, cell.reason or "no reason recorded") for cell in cells if cell.status == "failed"
    ]


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table as CSV text; floats are written so that they read back unchanged."""
    return str(frame.to_csv(index=False, lineterminator="\n"))
