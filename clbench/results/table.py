"""The table made of cells: one row a cell, and means over seeds.

Pure functions from cells to pandas frames; nothing here reads or writes files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clbench.results.cell import CellResult

if TYPE_CHECKING:
    import pandas as pd

SCORES = (
    "p_o",
    "p_s",
    "p",
    "p_o_before",
    "forgetting",
    "bwt",
    "average",
    "mean_forgetting",
    "intransigence",
)
COSTS = ("train_seconds", "training_memory_mb", "peak_memory_mb", "search_seconds")
COLUMNS = (
    *("scenario", "shift", "method", "model", "seed", "tasks"),
    *SCORES,
    *COSTS,
    *("keeps_rows", "status", "reason"),
)
Alone = dict[tuple[str, int, str, int | None], float | None]
"""Score of a task trained alone, by scenario, seed, protocol and position among those trained."""

GROUP = ("scenario", "shift", "method", "model")


def scores_frame(cells: Iterable[CellResult]) -> pd.DataFrame:
    """One row a cell, in the cells' order.

    The column ``method`` holds the baseline's name, since two baselines may share a method.
    Single-task references have no row; they only serve intransigence,
    R*[T-1] - R[T-1, T-1] (Chaudhry et al. 2018), which is filled in where the reference of
    the same scenario, seed and protocol is there. Scores of failed cells are missing.

    Returns
    -------
    pandas.DataFrame
        Columns as in `COLUMNS`; scores are floats (NaN where missing).
    """
    import pandas as pd

    every = list(cells)
    alone: Alone = {
        (cell.scenario, cell.seed, _protocol(cell), cell.reference_of): alone_score(cell)
        for cell in every
        if cell.reference_of is not None and cell.status == "ok"
    }
    rows = [_row(cell, alone) for cell in every if cell.reference_of is None]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers: dict[str, Any] = dict.fromkeys((*SCORES, *COSTS), "float64")
    return frame.astype({**numbers, "seed": "int64", "tasks": "int64", "keeps_rows": "bool"})


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample standard deviation over seeds, a row for each scenario × method.

    Parameters
    ----------
    frame
        As `scores_frame` makes it.

    Returns
    -------
    pandas.DataFrame
        Columns scenario, shift, method, model, tasks (in the sequence), ``seeds`` (finished
        cells), ``failed`` (failed cells), keeps_rows, and for each score and cost ``NAME_mean`` and
        ``NAME_std`` (ddof 1; NaN for a single seed), in the frame's order.
    """
    import pandas as pd

    rows = []
    for names, group in frame.groupby(list(GROUP), sort=False, dropna=False):
        good = group[group["status"] == "ok"]
        row: dict[str, Any] = dict(zip(GROUP, names, strict=True))
        row["tasks"] = int(group["tasks"].max())
        row["seeds"] = len(good)
        row["failed"] = len(group) - len(good)
        row["keeps_rows"] = bool(group["keeps_rows"].any())
        for name in (*SCORES, *COSTS):
            row[f"{name}_mean"] = good[name].mean()
            row[f"{name}_std"] = good[name].std(ddof=1)
        rows.append(row)
    columns = [*GROUP, "tasks", "seeds", "failed", "keeps_rows"]
    columns += [f"{name}_{part}" for name in (*SCORES, *COSTS) for part in ("mean", "std")]
    return pd.DataFrame(rows, columns=columns)


def failures(cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """Key and reason of every failed cell, references included."""
    return [
        (cell.key, cell.reason or "no reason recorded") for cell in cells if cell.status == "failed"
    ]


def to_csv(frame: pd.DataFrame) -> str:
    """The text of ``scores.csv``; floats are written so that they read back unchanged."""
    return str(frame.to_csv(index=False, lineterminator="\n"))


def _row(cell: CellResult, alone: Alone) -> dict[str, Any]:
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
    if cell.status != "ok":
        return {**row, **dict.fromkeys(SCORES)}
    row.update({name: cell.scores.get(name) for name in SCORES})
    # The pretraining, where it is the first task, is scored and has no stage.
    trained = len(cell.stages) or len(cell.tasks)
    reference = alone.get((cell.scenario, cell.seed, _protocol(cell), trained - 1))
    own = cell.R[-1][-1] if cell.R and cell.R[-1] else None
    if row["intransigence"] is None and reference is not None and own is not None:
        row["intransigence"] = reference - own
    return row


def _protocol(cell: CellResult) -> str:
    """What tells cells of other protocols apart, as of several runs in one report."""
    return f"{cell.model} {cell.settings.get('protocol')}"


def alone_score(cell: CellResult) -> float | None:
    """R* of a single-task reference: the only score in its only row."""
    scores = [score for score in cell.R[-1] if score is not None] if cell.R else []
    return scores[0] if len(scores) == 1 else None
