"""Trade-off curves: a method at several settings, compared curve with curve."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from clbench.results.cell import CellResult, cell_scores, steps_by_scenario
from clbench.results.comparisons import differences
from clbench.results.statistics import ALPHA, Differences, compare, summarise

FIELDS = (
    *("scenario", "method", "points", "seeds", "hypervolume", "low", "high", "front"),
    *("difference", "difference_low", "difference_high", "p_family", "verdict"),
)
POINT_FIELDS = ("scenario", "method", "point", "settings", "p_o", "p_s", "seeds", "on_front")
Point = tuple[float, float]  # p_s, p_o
Curve = dict[str, dict[int, Point]]  # by baseline and seed


def curves(
    cells: Sequence[CellResult], right: str = "p_s", up: str = "p_o"
) -> dict[str, dict[str, Curve]]:
    """Return the points of each baseline that has several settings, by scenario and baseline.

    A point is a pair of scores. A cell that was run before the sweep of its baseline is one of its
    points, too.
    """
    families = {cell.family for cell in cells} - {""}
    result: dict[str, dict[str, Curve]] = {}
    for cell in cells:
        family = cell.family or (cell.baseline if cell.baseline in families else "")
        if not family or cell.status != "ok" or cell.reference_of is not None:
            continue
        scores = cell_scores(cell)
        x, y = scores.get(right), scores.get(up)
        if x is not None and y is not None:
            curve = result.setdefault(cell.scenario, {}).setdefault(family, {})
            curve.setdefault(cell.baseline, {})[cell.seed] = x, y
    several = {
        scenario: {name: curve for name, curve in by_name.items() if len(curve) > 1}
        for scenario, by_name in result.items()
    }
    return {scenario: by_name for scenario, by_name in several.items() if by_name}


def mean_points(curve: Curve) -> dict[str, Point]:
    """Return the mean over seeds of each point."""
    return {
        name: (fmean(x for x, _ in seeds.values()), fmean(y for _, y in seeds.values()))
        for name, seeds in curve.items()
    }


def front(points: Mapping[str, Point]) -> list[str]:
    """Return the names of the points that no other point beats, from left to right.

    A point beats another if it is as good in both coordinates and better in one.
    """
    best = [
        name
        for name, (x, y) in points.items()
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points.values())
    ]
    return sorted(best, key=lambda name: points[name])


def hypervolume(points: Sequence[Point], floor: Point = (0.0, 0.0)) -> float:
    """Return the share of the rectangle from `floor` to (1, 1) that the points dominate.

    A point dominates what is at most as good in both coordinates (Zitzler & Thiele 1999, section
    4: the size of the space covered).
    """
    if max(floor) >= 1.0:
        return 0.0
    area, height = 0.0, floor[1]
    for x, y in sorted(points, reverse=True):
        if x > floor[0] and y > height:
            area += (x - floor[0]) * (y - height)
            height = y
    return area / ((1.0 - floor[0]) * (1.0 - floor[1]))


def pseudo_volumes(curve: Curve, floor: Point = (0.0, 0.0)) -> dict[int, float]:
    """Return a value for each seed whose mean is the hypervolume of a curve, nearly without bias.

    The value of seed i is ``n·H − (n − 1)·H_i``, with H that of the mean points and H_i that of the
    means over all other seeds: the pseudo-values of the jackknife (Tukey 1958). The mean of each
    seed's own hypervolume would be too large, the more so the less the noise of the points is
    shared. The seeds are those that all points have.
    """
    seeds = sorted(set.intersection(*map(set, curve.values())))
    if len(seeds) < 2:
        return {s: hypervolume([p[s] for p in curve.values()], floor) for s in seeds}

    def volume(some: Sequence[int]) -> float:
        return hypervolume(
            list(mean_points({n: {s: p[s] for s in some} for n, p in curve.items()}).values()),
            floor,
        )

    n, whole = len(seeds), volume(seeds)
    return {s: n * whole - (n - 1) * volume([x for x in seeds if x != s]) for s in seeds}


def fronts_frame(cells: Sequence[CellResult], reference: str, alpha: float = ALPHA) -> pd.DataFrame:
    """Return the hypervolume of each trade-off curve, and its difference from the reference's.

    Differences of `pseudo_volumes` are paired by seed. A curve of more points covers more by chance
    alone, so only curves with as many points as the reference's are compared. `alpha` is the error
    rate of all comparisons together.

    Returns
    -------
    pandas.DataFrame
        The fields `FIELDS`, a row for each scenario and curve: number of points and of seeds
        that all of them have, mean hypervolume above the floors with its 95 % t interval, the names
        on the front of the mean points, and the comparison with the reference.
    """
    rows: list[dict[str, Any]] = []
    groups: dict[str, dict[str, Differences]] = {}
    for scenario, by_name in curves(cells).items():
        floor = floors_of(cells, scenario)
        step = _step(cells, scenario, floor)
        volumes = {name: pseudo_volumes(curve, floor) for name, curve in by_name.items()}
        length = len(by_name.get(reference, ()))
        like = {name: values for name, values in volumes.items() if len(by_name[name]) == length}
        groups[scenario] = differences(like, reference, step)
        for name, curve in by_name.items():
            values = list(volumes[name].values())
            row: dict[str, Any] = {"scenario": scenario, "method": name, "points": len(curve)}
            row["seeds"] = len(values)
            if values:
                summary = summarise(values, step)
                low, high = max(summary.low, 0.0), min(summary.high, 1.0)
                row |= {"hypervolume": summary.mean, "low": low, "high": high}
            if length not in (0, len(curve)):
                row["verdict"] = "not compared: points differ"
            rows.append({**row, "front": ", ".join(front(mean_points(curve)))})
    answers = compare(groups, alpha=alpha)
    for row in rows:
        if answer := answers.get((row["scenario"], row["method"])):
            row |= {name: getattr(answer, name) for name in FIELDS[-5:]}
    return pd.DataFrame(rows, columns=list(FIELDS))


def points_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Return every point of the trade-off curves: its settings, and its mean p_o and p_s.

    Fields as in `POINT_FIELDS`; ``settings`` are those in which the points of the method differ, as
    text. The rows of a curve go from the highest mean of p_o and p_s to the lowest.
    """
    good = [cell for cell in cells if cell.status == "ok"]
    settings = {cell.baseline: cell.settings.get("method", {}) for cell in good}
    rows = []
    for scenario, by_name in curves(cells).items():
        for name, curve in by_name.items():
            points = mean_points(curve)
            best, own = front(points), settings.get(name) or settings[next(iter(points))]
            changed = [
                key
                for key in dict.fromkeys(key for point in points for key in settings[point])
                if any(settings[point].get(key) != own.get(key) for point in points)
            ]
            for point in sorted(points, key=lambda point: sum(points[point]), reverse=True):
                text = ", ".join(f"{key} {settings[point].get(key)}" for key in changed)
                p_s, p_o = points[point]
                seeds = len(curve[point])
                rows.append((scenario, name, point, text, p_o, p_s, seeds, point in best))
    return pd.DataFrame(rows, columns=list(POINT_FIELDS))


def floors_of(cells: Sequence[CellResult], scenario: str) -> Point:
    """Return the floors of the new and the old task; 0 where they were not measured."""
    for cell in cells:
        if cell.scenario == scenario and cell.floors:
            return cell.floors[-1] or 0.0, cell.floors[0] or 0.0
    return 0.0, 0.0


def _step(cells: Sequence[CellResult], scenario: str, floor: Point) -> float:
    """Return the most by which one row of each task can move a hypervolume."""
    steps = steps_by_scenario(cells).get(scenario, {})
    sides = zip((steps.get("p_s", 0.0), steps.get("p_o", 0.0)), floor, strict=True)
    return math.hypot(*(step / (1.0 - low) for step, low in sides if low < 1.0))
