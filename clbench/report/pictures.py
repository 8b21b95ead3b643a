"""Pictures of the page: the differences of the question, and sparklines of a stage's curves."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from clbench.figures.curves import ANNEALING
from clbench.report.sentences import mark
from clbench.results.cell import StageRecord
from clbench.suite.schema import Question
from clbench.suite.scores import SCORE

WIDTH, HEIGHT, MARGIN = 160, 32, 2
"""Size of a sparkline in pixels, and the margin inside it."""
NAMES = {"loss": "training loss", "lr": "learning rate", ANNEALING: "λ"}
"""Names of curves on the page; the engine records the first two at the steps in ``step``."""


def pictures(comparisons: pd.DataFrame, question: Question) -> list[dict[str, Any]]:
    """Return a panel for each scenario and score of the question, with its methods, best first.

    Positions are percentages of the width. All panels have one scale with 0 in the middle, from
    -`end` to `end`, and better is to the right.
    """
    table = comparisons[comparisons["primary"] & comparisons["difference"].notna()]
    ends = table[["difference", "difference_low", "difference_high"]].abs().max().max()
    end = 1.05 * max(0.0 if ends != ends else ends, question.margin) or 1.0  # NaN without rows
    panels: dict[tuple[str, str], list[dict[Any, Any]]] = {}
    for row in table.to_dict("records"):
        sign = 1.0 if SCORE[row["score"]].higher_is_better else -1.0
        low, at, high = sorted(
            50.0 + 50.0 * sign * (row["difference"] if value != value else value) / end
            for value in (row["difference_low"], row["difference"], row["difference_high"])
        )
        row |= {"left": low, "at": at, "length": high - low, "mark": mark(row["verdict"])}
        panels.setdefault((row["scenario"], row["score"]), []).append(row)
    return [
        {
            "scenario": scenario,
            "title": f"{SCORE[score].label} − {question.reference}",
            "less": not SCORE[score].higher_is_better,
            "end": end,
            "margin": 50.0 * question.margin / end,
            "rows": sorted(rows, key=lambda row: -row["at"]),
        }
        for (scenario, score), rows in panels.items()
    ]


class Sparkline(NamedTuple):
    """One curve: its name, an SVG polyline in a box of `WIDTH` × `HEIGHT`, and its values as text.

    A single point has no polyline.
    """

    name: str
    points: str
    text: str


def sparklines(stage: StageRecord) -> list[Sparkline]:
    """Return all curves of a stage that hold numbers, scores first."""
    tasks = stage.curves.get("scores", {})
    curves = {f"score on {task}": stage.points("scores", task) for task in tasks}
    for name in ("loss", "lr", *stage.curves):
        if name not in ("scores", "step"):
            curves[NAMES.get(name, name)] = stage.points(name)
    return [_sparkline(name, points) for name, points in curves.items() if points]


def _sparkline(name: str, points: Sequence[tuple[float, float]]) -> Sparkline:
    table = np.array(points)
    (start, first), (end, last) = points[0], points[-1]
    if len(points) == 1:
        return Sparkline(name, "", f"{first:.4g} at step {start:g}")
    low, high = table.min(0), table.max(0)
    text = f"{first:.4g} at step {start:g}, {last:.4g} at step {end:g}"
    if low[1] < min(first, last) or high[1] > max(first, last):
        text += f"; from {low[1]:.4g} to {high[1]:.4g}"
    span = np.where(high > low, high - low, np.inf)
    shares = np.where(high > low, (table - low) / span, 0.5)
    box = np.array([WIDTH, HEIGHT]) - 2 * MARGIN
    lines = [f"{x:.3g},{HEIGHT - y:.3g}" for x, y in MARGIN + box * shares]  # y is down in SVG
    return Sparkline(name, " ".join(lines), text)
