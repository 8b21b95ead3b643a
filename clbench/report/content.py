"""The numbers of a report, and the rows of the page's tables as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clbench.figures.curves import ANNEALING
from clbench.results.cell import CellResult, StageRecord, without_extra_points
from clbench.results.comparisons import comparisons_frame, controls_frame
from clbench.results.fronts import fronts_frame, points_frame
from clbench.results.score_tables import (
    MARKS,
    failures,
    marks,
    score_rows,
    scores_frame,
    summary,
    visible_scores,
)
from clbench.results.statistics import ALPHA, summarise
from clbench.suite.question import FEWEST, Question
from clbench.suite.scores import SCORES, Score

if TYPE_CHECKING:
    import pandas as pd

COSTS = {
    "train_seconds": ("train s", "seconds of training, without scoring"),
    "search_seconds": ("search s", "seconds of the search for the method’s settings"),
    "training_memory_mb": ("memory MB", "peak size of a training step’s tensors, in 10⁶ bytes"),
}
"""Columns of costs on the page: title and meaning."""


@dataclass(frozen=True)
class Content:
    """Everything in a report but its figures: cells (references included) and tables.

    `frame` has a row for each cell, `means` for each method; `comparisons` are with the reference
    of the `question`, `controls` with the controls; `floors` has a row for each task, `fronts` one
    for each trade-off curve, `points` for each of its points. Points of sweeps are only in `cells`,
    `frame`, `fronts` and `points`.
    """

    question: Question
    cells: tuple[CellResult, ...]
    frame: pd.DataFrame
    means: pd.DataFrame
    comparisons: pd.DataFrame
    controls: pd.DataFrame
    floors: pd.DataFrame
    fronts: pd.DataFrame
    points: pd.DataFrame


def gather(
    cells: Sequence[CellResult],
    question: Question = Question(),  # noqa: B008 - immutable
    alpha: float = ALPHA,
) -> Content:
    """Return the tables and statistics of cells; see `comparisons_frame`."""
    frame = scores_frame(cells, question.reference)
    main = without_extra_points(cells)
    return Content(
        question,
        tuple(cells),
        frame,
        means=summary(scores_frame(main, question.reference)),
        comparisons=comparisons_frame(main, question, alpha),
        controls=controls_frame(main, question, alpha),
        floors=floors_frame(main),
        fronts=fronts_frame(cells, question.reference, alpha),
        points=points_frame(cells),
    )


def floors_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Return the floors of each scenario's tasks, a row for each; empty if no cell has floors.

    ``constant`` is the score of always predicting the majority class, and ``frozen`` that of the
    method of this name after all training, as a mean over seeds, where it was run.
    """
    import pandas as pd

    good = [cell for cell in cells if cell.status == "ok" and cell.reference_of is None]
    ends: dict[str, list[list[float | None]]] = {}
    for cell in good:
        if cell.method == "frozen":
            ends.setdefault(cell.scenario, []).append(cell.R[-1])
    rows = []
    for cell in {cell.scenario: cell for cell in good if cell.floors}.values():
        for j, (task, floor) in enumerate(zip(cell.tasks, cell.floors, strict=True)):
            scores = [end[j] for end in ends.get(cell.scenario, [])]
            frozen = fmean(score or 0.0 for score in scores) if scores else None
            rows.append({"scenario": cell.scenario, "task": task, "constant": floor})
            rows[-1]["frozen"] = frozen
    if all(row["constant"] is row["frozen"] is None for row in rows):
        rows = []
    return pd.DataFrame(rows, columns=["scenario", "task", "constant", "frozen"])


def floor_rows(content: Content) -> list[dict[str, Any]]:
    """Return the rows of the table of floors: numbers as floats or None."""
    return [
        {
            "scenario": row["scenario"],
            "task": row["task"],
            "constant": number(row["constant"]),
            "frozen": number(row["frozen"]),
        }
        for row in content.floors.to_dict("records")
    ]


def flip_rows(content: Content) -> list[dict[str, Any]]:
    """Return the rows of the table of rows that flipped: of p_o, for what the question asks."""
    table, question = content.comparisons, content.question
    asked = [
        row["method"] == question.reference
        or question.depends_on(row["scenario"], row["score"], row["method"])
        for row in table.to_dict("records")
    ]
    table = table.loc[asked]
    table = table[(table["score"] == "p_o") & table["rows_lost"].notna()]
    names = ("rows_lost", "rows_gained", "rows_only_reference", "rows_only_method")
    return [
        {
            "scenario": row["scenario"],
            "method": row["method"],
            "rows": row["rows"],
            "difference": number(row["rows_difference"]),
            "interval": (number(row["rows_low"]), number(row["rows_high"])),
            "counts": [
                (count, None if count is None else count / row["rows"])
                for count in (number(row[name]) for name in names)
            ],
        }
        for row in table.to_dict("records")
    ]


def front_rows(content: Content) -> list[dict[str, Any]]:
    """Return the rows of the table of trade-off curves: numbers as floats or None."""
    reference = content.question.reference
    rows: list[dict[str, Any]] = []
    for row in content.fronts.drop(columns="front").to_dict("records"):
        texts = {key: row.pop(key) for key in ("scenario", "method", "verdict")}
        if not isinstance(texts["verdict"], str):
            texts["verdict"] = "the reference" if texts["method"] == reference else ""
        rows.append({**texts, **{str(key): number(value) for key, value in row.items()}})
    return rows


def averaged_scenarios(content: Content) -> list[str]:
    """Return the scenarios of a question about means over them; else none."""
    question = content.question
    if not question.mean_over_scenarios:
        return []
    names = dict.fromkeys(cell.scenario for cell in content.cells)
    return [name for name in names if question.covers(name)]


def finished_scenarios(cells: Sequence[CellResult]) -> list[str]:
    """Return the scenarios with a finished cell, in order."""
    return list(dict.fromkeys(cell.scenario for cell in cells if cell.status == "ok"))


def table_rows(content: Content) -> list[dict[str, Any]]:
    """Return the rows of the table of scores: numbers to sort by, and texts to show."""
    by_key = {
        (row["scenario"], row["method"], row["score"]): row
        for row in content.comparisons.to_dict("records")
    }
    means = content.means.to_dict("records")
    names = [score.name for score in visible_scores(means, page=True)]
    names += COSTS
    rows = []
    for row in means:
        keys = ("scenario", "shift", "method", "keeps_rows", "seeds", "failed")
        entry = {key: row[key] for key in keys}
        entry["comparisons"] = [
            _comparison(by_key.get((row["scenario"], row["method"], score), {}))
            for score in content.question.scores
        ]
        for name in names:
            entry[name] = number(row[f"{name}_mean"])
            entry[f"{name}_std"] = number(row[f"{name}_std"])
        entry["marks"] = marks(flag for flag in MARKS if row[flag])
        entry["needs_task_id"] = row["needs_task_id"]
        rows.append(entry)
    return rows


def _comparison(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the numbers and the judgement of a comparison."""
    texts = [row.get(key) for key in ("verdict", "why")]
    verdict, why = (text if isinstance(text, str) else "" for text in texts)
    names = ("difference", "difference_low", "difference_high", "p_family")
    judgement = why if verdict in ("", "no verdict") else verdict
    return {"judgement": judgement, **{name: number(row.get(name)) for name in names}}


def overview(content: Content) -> dict[str, Any]:
    """Return counts, failures and other facts that the page states once."""
    frame, table = content.frame, content.comparisons
    in_family = table["primary"] & (table["pairs"] >= FEWEST)
    return {
        "cells": len(frame),
        "failed": int((frame["status"] != "ok").sum()),
        "scenarios": frame["scenario"].nunique(),
        "methods": content.means["method"].nunique(),
        "seeds": frame["seed"].nunique(),
        "models": list(dict.fromkeys(frame["model"])),
        "failures": failures(content.cells),
        "question": content.question,
        "compared": int(in_family.sum()),
        "averaged": averaged_scenarios(content),
    }


def number(value: Any) -> float | None:
    """Return `value` as a float, or None if it is None or NaN."""
    return None if value is None or math.isnan(value) else float(value)


def cards_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Return a row for each scenario, method and score of a card; empty if nothing was measured.

    ``mean`` is over seeds, ``low`` to ``high`` its 95 % interval by Student's t, NaN for fewer than
    three seeds.
    """
    import pandas as pd

    values: dict[tuple[str, str, str], list[float]] = {}
    for row in score_rows(cells):
        if row.get("divergence") is None:
            continue
        for score in card_scores():
            if (value := row.get(score.name)) is not None:
                key = row["scenario"], row["method"], score.name
                values.setdefault(key, []).append(value)
    rows = []
    for (scenario, method, name), some in values.items():
        found = summarise(some)
        rows.append({"scenario": scenario, "method": method, "score": name, "seeds": found.n})
        rows[-1] |= {"mean": found.mean, "low": found.low, "high": found.high}
    columns = ["scenario", "method", "score", "seeds", "mean", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def card_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each scenario and method, with mean and interval of each score of a card."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in frame.to_dict("records"):
        key = row["scenario"], row["method"]
        entry = rows.setdefault(key, {"scenario": key[0], "method": key[1], "scores": {}})
        entry["seeds"] = row["seeds"]
        ends = None if math.isnan(row["low"]) else (row["low"], row["high"])
        entry["scores"][row["score"]] = (number(row["mean"]), ends)
    return list(rows.values())


def card_scores() -> list[Score]:
    """Return the scores of a card."""
    return [score for score in SCORES if score.on_card]


MOST_DETAILS = 500
"""Above this number of cells, the page shows details of failed ones only."""
WIDTH, HEIGHT, MARGIN = 160, 32, 2
"""Size of a sparkline in pixels, and the margin inside it."""
NAMES = {"loss": "training loss", "lr": "learning rate", ANNEALING: "λ"}
"""Names of curves on the page; the engine records the first two at the steps in ``step``."""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One curve: its name, an SVG polyline in a box of `WIDTH` × `HEIGHT`, and its values in words.

    A single point has no polyline.
    """

    name: str
    points: str
    words: str


def cell_details(cells: Sequence[CellResult]) -> tuple[list[dict[str, Any]], int]:
    """Return the details of cells, and how many cells were left out to keep the page small."""
    selection = list(cells)
    if len(selection) > MOST_DETAILS:
        selection = [cell for cell in selection if cell.status == "failed"][:MOST_DETAILS]
    details = [
        {
            "key": cell.key,
            "status": cell.status,
            "reason": cell.reason,
            "settings": json.dumps(cell.settings, indent=1),
            "versions": json.dumps({**cell.versions, **cell.host}, indent=1),
            "tasks": cell.tasks,
            "stages": [_stage(cell, row) for row in range(len(cell.R))],
            "curve_rows": cell.settings.get("protocol", {}).get("curve_rows"),
            "notes": cell.notes,
            "search": cell.search,
            "training_memory_mb": cell.training_memory_mb,
            "peak_memory_mb": cell.peak_memory_mb,
            "started": cell.started,
        }
        for cell in selection
    ]
    return details, len(cells) - len(details)


def _stage(cell: CellResult, row: int) -> dict[str, Any]:
    """Return a row of R and the costs of its stage."""
    # Where the pretraining is the first task, its row has no stage.
    index = row - len(cell.R) + len(cell.stages)
    stage = cell.stages[index] if 0 <= index < len(cell.stages) else None
    return {
        "task": cell.tasks[row] if stage is None else stage.task,
        "scores": cell.R[row],
        "rows": None if stage is None else float(stage.rows),
        "steps": None if stage is None else float(stage.steps),
        "seconds": None if stage is None else stage.train_seconds,
        "cached": stage is not None and stage.cached,
        "curves": [] if stage is None else curve_lines(stage),
    }


def curve_lines(stage: StageRecord) -> list[Line]:
    """Return all curves of a stage that hold numbers, scores first."""
    return [_line(name, points) for name, points in _curves(stage) if points]


def _curves(stage: StageRecord) -> Iterator[tuple[str, Points]]:
    for task in stage.curves.get("scores", {}):
        yield f"score on {task}", stage.points("scores", task)
    for name in dict.fromkeys(("loss", "lr", *stage.curves)):
        if name not in ("scores", "step"):
            yield NAMES.get(name, name), stage.points(name)


def _line(name: str, points: Points) -> Line:
    steps, values = zip(*points, strict=True)
    if len(points) == 1:
        return Line(name, "", f"{values[0]:.4g} at step {steps[0]:g}")
    low, high = min(values), max(values)
    words = f"{values[0]:.4g} at step {steps[0]:g}, {values[-1]:.4g} at step {steps[-1]:g}"
    if low < min(values[0], values[-1]) or high > max(values[0], values[-1]):
        words += f"; from {low:.4g} to {high:.4g}"
    x = _scale(steps, WIDTH)
    y = [HEIGHT - value for value in _scale(values, HEIGHT)]  # y points down in SVG
    return Line(name, " ".join(f"{a:.3g},{b:.3g}" for a, b in zip(x, y, strict=True)), words)


def _scale(values: Sequence[float], size: float) -> list[float]:
    """Return the positions of values in a box of that size; the middle if all are equal."""
    low, span = min(values), max(values) - min(values)
    if not span:
        return [size / 2] * len(values)
    return [MARGIN + (size - 2 * MARGIN) * (value - low) / span for value in values]
