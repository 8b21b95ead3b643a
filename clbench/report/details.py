"""Details of single cells: score matrix, stages, and curves as sparklines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clbench.figures.curves import ANNEALING
from clbench.report.content import number
from clbench.results.cell import CellResult, StageRecord

MOST_DETAILS = 500
"""Above this number of cells, the page shows details of failed ones only."""
WIDTH, HEIGHT, MARGIN = 160, 32, 2
"""Size of a sparkline in pixels, and the margin inside it."""
ENGINE_CURVES = {"loss": "training loss", "lr": "learning rate"}
"""Curves that the engine records at the steps in ``step``, and their names on the page."""

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
            "search": {name: value for name, value in cell.search.items() if value is not None},
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
        "scores": [number(score) for score in cell.R[row]],
        "rows": None if stage is None else float(stage.rows),
        "steps": None if stage is None else float(stage.steps),
        "seconds": None if stage is None else stage.train_seconds,
        "cached": stage is not None and stage.cached,
        "curves": [] if stage is None else curve_lines(stage),
    }


def curve_lines(stage: StageRecord) -> list[Line]:
    """Return all curves of a stage that hold numbers, scores first."""
    return [_line(name, points) for name, points in _curves(stage.curves) if points]


def _curves(curves: Mapping[str, Any]) -> Iterator[tuple[str, Points]]:
    for task, pairs in dict(curves.get("scores") or {}).items():
        yield f"score on {task}", _points(pairs)
    steps = curves.get("step") or []
    for name, words in ENGINE_CURVES.items():
        yield words, _points(list(zip(steps, curves.get(name) or [], strict=False)))
    for name, pairs in curves.items():
        if name not in ("scores", "step", *ENGINE_CURVES):
            yield "λ" if name == ANNEALING else name, _points(pairs)


def _points(pairs: Any) -> Points:
    """Return steps and finite values; empty if `pairs` is something else."""
    try:
        points = [(float(step), float(value)) for step, value in pairs]
    except (TypeError, ValueError):
        return []
    return [point for point in points if all(map(math.isfinite, point))]


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
