"""Tables of scores: a row for each cell, and means over seeds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.core.errors import count
from clbench.core.options import checks_arguments
from clbench.results.cell import CellResult, cell_scores
from clbench.results.scores import quotient
from clbench.results.store import Store
from clbench.suite.schema import Question
from clbench.suite.scores import SCORE, SCORES, Score
from clbench.training.protocol import BY_TASK, PATHS

if TYPE_CHECKING:
    import pandas as pd

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
SMOKE = "Smoke run at about a tenth of the rows and steps: these scores are no result."
"""Marks tables of smoke runs."""
Group = tuple[str, str]  # scenario, score
BySeed = dict[str, dict[int, float]]  # by baseline and seed


def fields(rows: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Return the fields of ``scores.csv``; of sparse scores those that a row of cells has."""
    found = {name for row in rows for name, value in row.items() if value is not None}
    scores = [name for name, score in SCORE.items() if not score.sparse or name in found]
    return [*GROUP, "seed", "tasks", *scores, *COSTS, *MARKS, "status", "reason"]


def marks(flags: Iterable[str]) -> str:
    """Return the signs of `flags`, with a leading space if there are any."""
    signs = "".join(MARKS[flag][0] for flag in flags)
    return f" {signs}" if signs else ""


def reference_score(cell: CellResult) -> float | None:
    """Return R* of a single-task reference: the only score in its only row."""
    return next((score for row in cell.R for score in row if score is not None), None)


def visible_scores(
    means: Iterable[Mapping[Any, Any]], *, page: bool = False, asked: Sequence[str] = ()
) -> list[Score]:
    """Return the scores that a table of `means`, rows of `summary`, shows: those with a value.

    Those that a question `asked` for by name are among them.
    """
    rows = list(means)
    shown = {"always"}
    if any(row["tasks"] > 2 for row in rows):
        shown |= {"sequences", "page"} if page else {"sequences"}
    if page or any(row["tasks"] <= 2 for row in rows):
        shown.add("pairs")

    def is_visible(score: Score) -> bool:
        is_shown = score.visibility in shown or score.name in asked or (page and score.sparse)
        return is_shown and has_value(rows, f"{score.name}_mean")

    return list(filter(is_visible, SCORES))


def has_value(rows: Iterable[Mapping[Any, Any]], name: str) -> bool:
    """Whether a row has a number in the field `name`."""
    return any(row[name] is not None and not math.isnan(row[name]) for row in rows)


def score_rows(cells: Iterable[CellResult], reference: str = "vanilla") -> list[dict[str, Any]]:
    """Return a row for each cell, in the cells' order, with the keys of `fields`.

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
    return rows_frame(score_rows(cells, reference))


def rows_frame(rows: Sequence[Mapping[str, Any]], others: Sequence[str] = ()) -> pd.DataFrame:
    """Return rows of `score_rows` as a table; `others` are further fields of theirs, the first."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=[*others, *fields(rows)])
    scores = [name for name in SCORE if name in frame.columns]
    numbers: dict[str, Any] = dict.fromkeys((*scores, *COSTS), "float64")
    flags = dict.fromkeys(MARKS, "bool")
    return frame.astype({**numbers, "seed": "int64", "tasks": "int64", **flags})


def _reference_key(cell: CellResult) -> tuple[str, int, str, str]:
    """Return what a cell shares with its references; a report may hold several protocols.

    Paths of model and corpus do not count, nor values for other tasks: cells with others may share
    a folder.
    """
    own = {task.partition("[")[0] for task in cell.tasks}
    protocol: Mapping[str, Any] = cell.settings.get("protocol") or {}
    by_task = {
        (key, name): value
        for key in BY_TASK
        for name, value in (protocol.get(key) or {}).items()
        if name in own
    }
    others = {key: value for key, value in protocol.items() if key not in (*BY_TASK, *PATHS)}
    return cell.scenario, cell.seed, cell.model, f"{others} {by_task}"


def _row(cell: CellResult, alone: Mapping[int, float], reference: float | None) -> dict[str, Any]:
    own = ("scenario", "shift", "model", "seed", "status", *COSTS[:-1], *MARKS)
    row: dict[str, Any] = {name: getattr(cell, name) for name in own}
    row |= {"method": cell.baseline, "tasks": len(cell.tasks), "reason": cell.reason or ""}
    if cell.is_smoke:
        row["reason"] = f"{SMOKE} {row['reason']}".strip()
    row["search_seconds"] = cell.search.get("seconds")
    if cell.status == "ok":
        # The pretraining, where it is the first task, has no stage and no reference.
        before = len(cell.tasks) - len(cell.stages)
        shifted = {stage + before: score for stage, score in alone.items()}
        row |= cell_scores(cell, alone=shifted, reference=reference)
    return row


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
                share, n = quotient(good, ratio), 0
                mean = math.nan if share is None else share
            squares = math.fsum((value - mean) ** 2 for value in values)
            entry[f"{name}_mean"] = mean
            entry[f"{name}_std"] = math.sqrt(squares / (n - 1)) if n > 1 else math.nan
        table.append(entry)
    return table


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `means` of the rows of `scores_frame` as a table."""
    import pandas as pd

    names = [*GROUP, "tasks", "seeds", "failed", *MARKS]
    names += [f"{name}_{part}" for name in (*SCORE, *COSTS) for part in ("mean", "std")]
    return pd.DataFrame(means(frame.to_dict("records")), columns=names)


def failures(cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """Return key and reason of every failed cell, references included."""
    return [
        (cell.key, cell.reason or "no reason recorded") for cell in cells if cell.status == "failed"
    ]


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table as CSV text; floats are written so that they read back unchanged."""
    return str(frame.to_csv(index=False, lineterminator="\n"))


@dataclass(frozen=True)
class Run:
    """A run's folder and its cells, finished or failed.

    The cells, references included, are sorted by scenario, method and seed.
    """

    path: Path
    cells: tuple[CellResult, ...]

    def __repr__(self) -> str:
        counts = f"{count(len(self.cells), 'cell')}, {len(self.failed)} failed"
        return f"Run({str(self.path)!r}: {counts})"

    @property
    def frame(self) -> pd.DataFrame:
        """One row per cell, with the fields of ``scores.csv``."""
        return scores_frame(self.cells, Store(self.path).questions()[-1].reference)

    @property
    def summary(self) -> pd.DataFrame:
        """Mean and sample standard deviation over seeds, one row per scenario × method."""
        return summary(self.frame)

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """The cells that failed; each has its `reason`."""
        return tuple(cell for cell in self.cells if cell.status == "failed")


@checks_arguments
def load_run(path: str | Path) -> Run:
    """Load a run from its folder, with a warning for each file that is not a valid cell.

    Raises
    ------
    RunFolderError
        If the folder holds no run, or a file from a newer version of clbench.
    """
    store = Store(Path(path))
    store.require()
    folder = store.read()
    for line in folder.broken_lines(()):
        warnings.warn(line, stacklevel=2)
    return Run(store.out, tuple(folder.cells))


def scores_to_compare(cells: Sequence[CellResult], question: Question) -> dict[Group, BySeed]:
    """Return the scores to compare by scenario and score, then by baseline and seed."""
    names = [score.name for score in SCORES if score.compared or score.name in question.scores]
    values: dict[Group, BySeed] = {}
    for row in score_rows(cells):
        for name in names:
            if (value := row.get(name)) is not None:
                by_baseline = values.setdefault((row["scenario"], name), {})
                by_baseline.setdefault(row["method"], {})[row["seed"]] = value
    return values
