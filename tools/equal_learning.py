"""What methods lose where plain fine-tuning learned as much."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from clbench.results import matched
from clbench.results.matched import read_curve, unbeaten
from clbench.results.statistics import ALPHA, Comparison, Differences, compare
from tools.findings import interval

SIDE = 1e-3
"""On either side of a reading, where the slope of a curve is taken."""
Floats = npt.NDArray[np.float64]
OUTSIDE = "outside the curve"
Key = TypeVar("Key", bound=Hashable)


def complete(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the seeds that every baseline has."""
    sizes = frame.groupby("seed")["baseline"].transform("size")
    return frame[sizes == frame["baseline"].nunique()].reset_index(drop=True)


def by_seed(frame: pd.DataFrame, score: str) -> pd.DataFrame:
    """Return a score by seed (rows) and baseline (columns)."""
    return frame.pivot(index="seed", columns="baseline", values=score)


def at_equal_learning(
    learned: pd.DataFrame,
    lost: Mapping[str, tuple[pd.DataFrame, float]],
    curve: Sequence[str],
    others: Sequence[str],
    alpha: float = ALPHA,
) -> dict[tuple[str, str], Comparison | int]:
    """Return what each of `others` loses less than a curve of settings where both learn as much.

    Each seed's own curve is read at what the other learned on average. The spread of what it
    learned enters the error, times the curve's slope, and so does the curve's bend. Never beyond
    its ends: where that is more or less than a curve reaches, the number of seeds of which it is so
    is returned, and 0 where too few settings are left to see the bend.
    All intervals hold jointly.

    Parameters
    ----------
    learned
        Scores by seed (rows) and baseline (columns).
    lost
        By score, what is lost, of the same shape, less being better, and the step of that score.
    curve, others
        Names of columns.
    alpha
        Error rate of the family.
    """
    samples: dict[str, dict[str, Differences]] = {}
    found: dict[tuple[str, str], Comparison | int] = {}
    for key, (losses, row) in lost.items():
        points = np.stack([learned[[*curve]], losses[[*curve]]], axis=-1)
        for name in others:
            level = learned[name].mean()
            values, bend = read_curve(points, level)
            outside = int(np.isnan(values).sum())
            if outside or not np.isfinite(bend):
                found[key, name] = outside
                continue
            around = [read_curve(points, level + side * SIDE)[0] for side in (-1, 1)]
            slope = np.nanmean(around[1] - around[0]) / (2 * SIDE)
            noise = slope * (learned[name] - level)
            differences = Differences(tuple(values - losses[name] + noise), row, bend)
            samples.setdefault(key, {})[name] = differences
    return found | compare(samples, alpha=alpha, family=len(lost) * len(others))


def read_extended(points: Floats, level: float) -> tuple[Floats, float]:
    """Do what `read_curve` does, moved to where the curve bends most.

    The line between the two settings around the level is replaced, on the means, by that through
    the next two settings on either side, whichever is nearer. Where a curve bends one way over
    these settings, it lies between the two readings.
    """
    values, bend = matched.read_curve(points, level)
    kept = np.unique(points, axis=1)
    x, y = np.moveaxis(kept[:, unbeaten(kept)].mean(0), -1, 0)
    order = x.argsort(kind="stable")
    x, y = x[order], y[order]
    right = int(np.clip(np.searchsorted(x, level, "right"), 1, len(x) - 1))

    def line(first: int) -> float:
        slope = (y[first + 1] - y[first]) / (x[first + 1] - x[first])
        return float(y[first] + slope * (level - x[first]))

    beside = [line(i) for i in (right - 2, right) if 0 <= i < len(x) - 1]
    moves = [each - line(right - 1) for each in beside]
    return values + min(moves, key=abs, default=0.0), bend


def facts_on_curve(
    frame: pd.DataFrame, steps: Mapping[str, float], curve: Sequence[str], others: Sequence[str]
) -> dict[tuple[str, str], Comparison | int]:
    """Return what `others` keep, and do not lose since the first stage, at equal learning.

    By score, the old facts or their ``forgetting``, and baseline; see `at_equal_learning`.
    """
    new, old, lost = (by_seed(frame, score) for score in ("p_s", "p_o", "forgetting"))
    losses = {"p_o": (-old, steps["p_o"]), "forgetting": (lost, steps["forgetting"])}
    return at_equal_learning(new, losses, curve, others)


def against(
    frame: pd.DataFrame,
    pairs: Mapping[str, Sequence[str]],
    steps: Mapping[str, float],
    lower_is_better: Sequence[str],
    alpha: float = ALPHA,
    margin: float = 0.0,
) -> dict[tuple[str, str, str], Comparison]:
    """Return what differs between baselines by score, reference and baseline.

    All intervals hold jointly.

    Parameters
    ----------
    frame
        Rows of the seeds that all have, with the columns ``seed``, ``baseline`` and the scores.
    pairs
        Baselines by reference.
    steps
        The smallest change of each score.
    lower_is_better
        Scores of which less is better.
    alpha
        Error rate of the family.
    margin
        Differences within it are equivalent; 0 for none.
    """
    groups = {}
    for score, step in steps.items():
        own = by_seed(frame, score)
        for reference, names in pairs.items():
            groups[score, reference] = {
                name: Differences(tuple(own[name] - own[reference]), step) for name in names
            }
    lower = [key for key in groups if key[0] in lower_is_better]
    found = compare(groups, alpha=alpha, margin=margin, lower_is_better=lower)
    return {(*key, name): each for (key, name), each in found.items()}


def changed_verdicts(
    before: Mapping[Key, Comparison | int], after: Mapping[Key, Comparison | int]
) -> dict[Key, tuple[str, str]]:
    """Return both verdicts of what two readings of `at_equal_learning` tell differently.

    `OUTSIDE` stands for the verdict of what a curve cannot be read for.
    """

    def verdict(found: Comparison | int) -> str:
        return found.verdict if isinstance(found, Comparison) else OUTSIDE

    both = {key: (verdict(found), verdict(after[key])) for key, found in before.items()}
    return {key: pair for key, pair in both.items() if pair[0] != pair[1]}


def shown_against(found: Mapping[tuple[str, str, str], Comparison]) -> list[list[str]]:
    """Return what `against` says in rows, one for a reference and a baseline."""
    scores = [*dict.fromkeys(score for score, _, _ in found)]
    return [
        [
            f"`{name}`",
            f"`{reference}`",
            *(t for s in scores for t in shown_comparison(found[s, reference, name])),
        ]
        for score, reference, name in found
        if score == scores[0]
    ]


def shown_comparison(found: Comparison) -> tuple[str, str]:
    """Return difference with interval, and verdict."""
    ends = found.difference, found.difference_low, found.difference_high
    return interval(*ends), "" if found.verdict == "no difference shown" else found.verdict


def shown_on_curve(found: Comparison | int | None) -> str:
    """Return what `at_equal_learning` says of a baseline."""
    if found is None:
        return "on the curve"
    if found == 0:
        return "too few settings that learn differently"
    if isinstance(found, int):
        return f"outside the curve on {found} seed{'s' * (found > 1)}"
    return " ".join(shown_comparison(found)).strip()
