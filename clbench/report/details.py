"""Details of single cells: score matrix, stages, and curves as sparklines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clbench.figures.curves import ANNEALING
from clbench.results.cell import CellResult, StageRecord

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
