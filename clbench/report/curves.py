"""The curves of a stage as small lines beside their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clbench.figures.anchor import ANNEALING
from clbench.results.cell import StageRecord

WIDTH, HEIGHT = 160, 32
"""Of a line's box, in the page's pixels."""
MARGIN = 2
DIGITS = 4
"""Of the numbers beside a line."""

ALONG = {"loss": "training loss", "lr": "learning rate"}
"""What the engine records at the steps of the curve ``step``."""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes
    ----------
    name
        What was measured.
    points
        For the attribute of an SVG polyline in a box of `WIDTH` × `HEIGHT`; empty for a
        single point.
    words
        First, last, least and greatest value, and the steps between which they lie.
    """

    name: str
    points: str
    words: str


def lines(stage: StageRecord) -> list[Line]:
    """Every curve of a stage that holds numbers, the scores first."""
    return [_line(name, points) for name, points in _curves(stage.curves) if points]


def _curves(curves: Mapping[str, Any]) -> Iterator[tuple[str, Points]]:
    for task, pairs in dict(curves.get("scores") or {}).items():
        yield f"score on {task}", _points(pairs)
    steps = curves.get("step") or []
    for name, words in ALONG.items():
        yield words, _points(list(zip(steps, curves.get(name) or [], strict=False)))
    for name, pairs in curves.items():
        if name not in ("scores", "step", *ALONG):
            yield "λ" if name == ANNEALING else name, _points(pairs)


def _points(pairs: Any) -> Points:
    """Steps and values; none where a method recorded something else."""
    try:
        found = [(float(step), float(value)) for step, value in pairs]
    except (TypeError, ValueError):
        return []
    return [point for point in found if all(map(math.isfinite, point))]


def _line(name: str, points: Points) -> Line:
    steps, values = zip(*points, strict=True)
    first, last = _number(values[0]), _number(values[-1])
    if len(points) == 1:
        return Line(name, "", f"{first} at step {steps[0]:g}")
    words = f"{first} at step {steps[0]:g}, {last} at step {steps[-1]:g}"
    low, high = min(values), max(values)
    if low < min(values[0], values[-1]) or high > max(values[0], values[-1]):
        words += f"; from {_number(low)} to {_number(high)}"
    across = _scaled(steps, WIDTH)
    # The y axis of a picture runs downwards.
    down = [HEIGHT - place for place in _scaled(values, HEIGHT)]
    drawn = " ".join(f"{x:.3g},{y:.3g}" for x, y in zip(across, down, strict=True))
    return Line(name, drawn, words)


def _scaled(values: Sequence[float], size: float) -> list[float]:
    """From the margin to `size` without it; in the middle where all are equal."""
    low, span = min(values), max(values) - min(values)
    if not span:
        return [size / 2] * len(values)
    return [MARGIN + (size - 2 * MARGIN) * (value - low) / span for value in values]


def _number(value: float) -> str:
    return f"{value:.{DIGITS}g}"
