"""Forgetting at equal learning: trade-off curves, read at levels that are fixed beforehand."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from clbench.results.cell import CellResult, steps_by_scenario
from clbench.results.fronts import Curve, curves, floors_of
from clbench.results.scores import LEAST_GAIN
from clbench.results.statistics import ALPHA, Differences, Floats, compare, summarise
from clbench.suite.scores import SCORE

LEVELS = (0.5, 0.75, 0.9)
"""What is learned of the new task, as a share of the reference's gain, where curves are read."""
SCORES = ("mean_forgetting", "p_o", "text_loss_added")
"""What is read, where cells have it.

A setting acts in all stages: one that learned less of the old task has less to forget, and p_o
says what is left of it.
"""
FEWEST_SETTINGS = 3
"""Settings from which a curve's bend can be seen."""
FIELDS = (
    *("scenario", "score", "learned", "method", "settings", "seeds", "mean", "low", "high"),
    *("pairs", "difference", "difference_low", "difference_high", "level"),
    *("p", "p_family", "verdict", "why"),
)


def read_curve(points: Floats, level: float) -> tuple[Floats, float]:
    """Return what each seed's curve shows at a level, and how much its bend may hide.

    Settings that another one beats (`unbeaten`) are left out. The others are joined by straight
    lines, in the order of what each seed learned. On the means, the line between the two settings
    around the level is compared with the parabola through a third setting, on either side; the
    larger distance is returned.

    Parameters
    ----------
    points
        Shape (seeds, settings, 2): what was learned and what was forgotten.
    level
        In units of what was learned.

    Returns
    -------
    values
        Shape (seeds,); NaN for a seed that has settings on one side of the level only.
    bend
        Infinite if fewer than `FEWEST_SETTINGS` are left, NaN if two of them learn alike.
    """
    points = np.unique(points, axis=1)  # such as shares of layers that round alike
    x, y = np.moveaxis(points[:, unbeaten(points)], -1, 0)
    values = []
    for own_x, own_y in zip(x, y, strict=True):
        order = own_x.argsort(kind="stable")
        values.append(np.interp(level, own_x[order], own_y[order], left=math.nan, right=math.nan))
    order = x.mean(0).argsort(kind="stable")
    means, heights = x.mean(0)[order], y.mean(0)[order]
    bend, count = math.inf, len(means)
    if count >= FEWEST_SETTINGS:
        right = int(np.clip(np.searchsorted(means, level, "right"), 1, count - 1))
        bends = [
            _bend(means[[right - 1, right, third]], heights[[right - 1, right, third]], level)
            for third in (right - 2, right + 1)
            if 0 <= third < count
        ]
        bend = float(np.max(bends))  # NaN if one is
    return np.array(values), bend


def unbeaten(points: Floats) -> np.typing.NDArray[np.bool_]:
    """Return which settings of points as in `read_curve` no other one beats, shape (settings,).

    A setting is beaten, as by too high a rate, if another one learns at least as much and forgets
    less on every seed.
    """
    x, y = np.moveaxis(points, -1, 0)
    beats = (x[:, None] >= x[:, :, None]) & (y[:, None] < y[:, :, None])
    beaten: np.typing.NDArray[np.bool_] = beats.all(axis=0).any(axis=1)
    return ~beaten


def _bend(x: Floats, y: Floats, level: float) -> float:
    """Return how far the parabola through three points is from the line through the first two.

    NaN if two of them have the same x.
    """
    if len({*x}) < len(x):
        return math.nan
    slopes = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    return abs(float((slopes[1] - slopes[0]) / (x[2] - x[0]) * (level - x[0]) * (level - x[1])))


class Reading(NamedTuple):
    """A curve at a level: the values of the seeds that reach it, the bend, and what it lacks."""

    values: Mapping[int, float]
    bend: float
    lack: str = ""


def learned_curves(
    cells: Sequence[CellResult], reference: str, score: str
) -> dict[str, dict[str, Curve]]:
    """Return the curves of `fronts.curves` as points of what was learned and a score.

    What was learned is p_s above its floor (above 0 where the floor is not known), as a share of
    the mean gain of the reference at its own setting. Scenarios in which that is below `LEAST_GAIN`
    are left out.
    """
    result = {}
    for scenario, by_name in curves(cells, "p_s", score).items():
        own = [c for c in cells if (c.scenario, c.baseline) == (scenario, reference)]
        ends = [c.R[-1][-1] or 0.0 for c in own if c.is_scored]
        floor = floors_of(cells, scenario)[0]
        gain = fmean(ends) - floor if ends else 0.0
        if gain >= LEAST_GAIN:
            result[scenario] = {
                name: {
                    point: {seed: ((x - floor) / gain, y) for seed, (x, y) in seeds.items()}
                    for point, seeds in curve.items()
                }
                for name, curve in by_name.items()
            }
    return result


def read(name: str, curve: Curve, level: float, sign: float = 1.0) -> Reading:
    """Return a method's curve at a level of what was learned; none if a setting lacks a seed.

    `sign` is −1 for a score of which more is better.
    """
    seeds = sorted(set.intersection(*map(set, curve.values())))
    if missing := sorted(set().union(*curve.values()) - {*seeds}):
        return Reading({}, math.inf, f"{name} has seed {missing[0]} not at all of its settings")
    points = np.array([[curve[point][seed] for point in curve] for seed in seeds])
    values, bend = read_curve(points * (1.0, sign), level)
    lack = ""
    if outside := [i for i, value in enumerate(values) if math.isnan(value)]:
        learned, how = points[outside[0], :, 0], "has only settings that others beat below"
        if learned.max() < level:
            how = "never learns as much as"
        elif learned.min() > level:
            how = "learns more at every setting than"
        lack = f"{name} {how} {level:g} on seed {seeds[outside[0]]}"
    elif math.isnan(bend):
        lack = f"{name} has settings near {level:g} that learn exactly alike on average"
    elif math.isinf(bend):
        lack = f"{name} has fewer than {FEWEST_SETTINGS} settings that none beats on every seed"
    pairs = zip(seeds, map(float, sign * values), strict=True)
    return Reading({seed: value for seed, value in pairs if not math.isnan(value)}, bend, lack)


def matched_frame(
    cells: Sequence[CellResult], reference: str, alpha: float = ALPHA
) -> pd.DataFrame:
    """Return what every swept method forgets where it learns as much as the others.

    Each seed's own curve is read by interpolation at `LEVELS`, never beyond its ends: a method is
    compared with the reference at a level only if both have settings on both sides of it on every
    seed. Differences are paired by seed. The bends of both curves are added to the standard error,
    as if each were one. All comparisons, the refused ones included, share the error rate `alpha`.

    Returns
    -------
    pandas.DataFrame
        The fields `FIELDS`, a row for each scenario, score, level and swept method; ``mean`` has
        its 95 % interval. Empty unless the reference was swept.
    """
    steps = steps_by_scenario(cells)
    rows: list[dict[str, Any]] = []
    groups: dict[tuple[str, str, float], dict[str, Differences]] = {}
    for score in SCORES:
        sign = -1.0 if SCORE[score].higher_is_better else 1.0
        for scenario, by_name in learned_curves(cells, reference, score).items():
            step = steps.get(scenario, {}).get(score, 0.0)
            for level in LEVELS if reference in by_name else ():
                theirs = read(reference, by_name[reference], level, sign)
                for name, curve in by_name.items():
                    ours = read(name, curve, level, sign)
                    row: dict[str, Any] = {"scenario": scenario, "score": score, "learned": level}
                    row |= {"method": name}
                    row |= {"settings": len(curve), "seeds": len(ours.values)}
                    if not ours.lack:
                        found = summarise(list(ours.values.values()), step, ours.bend)
                        row |= {"mean": found.mean, "low": found.low, "high": found.high}
                    lacks = dict.fromkeys(filter(None, (ours.lack, theirs.lack)))
                    row["why"] = "; ".join(lacks) or ("the reference" if name == reference else "")
                    rows.append(row)
                    common = sorted(ours.values.keys() & theirs.values.keys())
                    if not row["why"] and common:
                        values = [ours.values[seed] - theirs.values[seed] for seed in common]
                        group = groups.setdefault((scenario, score, level), {})
                        bend = math.hypot(ours.bend, theirs.bend)
                        group[name] = Differences(tuple(values), step, bend)
    family = sum(row["method"] != reference for row in rows)
    lower = [group for group in groups if not SCORE[group[1]].higher_is_better]
    answers = compare(groups, alpha=alpha, family=max(1, family), lower_is_better=lower)
    for row in rows:
        key = row["scenario"], row["score"], row["learned"]
        if answer := answers.get((key, str(row["method"]))):
            row |= {name: getattr(answer, name) for name in FIELDS[-9:]}
        elif row["method"] != reference:
            row["why"] = row["why"] or f"no seed in common with {reference}"
            row["verdict"] = "no verdict"
    return pd.DataFrame(rows, columns=list(FIELDS))
