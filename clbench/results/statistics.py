"""Differences between methods over seeds, and whether they are shown.

Seeds are pairs: on one seed two methods see the same batches, so their difference is taken seed by
seed, and never of means. Pure functions; nothing here reads files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from clbench.seeds import numpy_stream

LEVEL = 0.95
"""Of intervals, unless one says otherwise."""

FEWEST = 3
"""Seeds below which there is no verdict: two differences show no spread worth the name."""

MOST_SEEDS = 1000
"""Seeds that are never advised."""

EXACT = 14
"""Up to so many seeds all 2^n sign flips are counted; above, `DRAWS` are drawn."""

DRAWS = 20_000
"""Resamples of the bootstrap, and drawn sign flips."""

Floats = npt.NDArray[np.float64]
Verdict = Literal["better", "worse", "no difference shown", "no verdict"]


@dataclass(frozen=True)
class Summary:
    """Values over seeds.

    Attributes
    ----------
    n
        Number of seeds.
    mean, median, minimum, maximum
        Of the values.
    deviation
        Sample standard deviation (ddof 1); NaN for one seed.
    low, high
        Bootstrap percentile interval of the mean; NaN for fewer than `FEWEST` seeds. With a
        handful of seeds it is too narrow, so nothing is concluded from it.
    """

    n: int
    mean: float
    median: float
    deviation: float
    minimum: float
    maximum: float
    low: float
    high: float


def summarise(values: Sequence[float], *, level: float = LEVEL) -> Summary:
    """Mean, median, range and bootstrap interval.

    Parameters
    ----------
    values
        One a seed, shape (n,), n ≥ 1, finite.
    level
        Of the interval.

    Raises
    ------
    ValueError
        If there are none, or one is not finite.
    """
    found = _finite(values)
    low, high = bootstrap(found, level=level)
    return Summary(
        n=len(found),
        mean=float(found.mean()),
        median=float(np.median(found)),
        deviation=float(found.std(ddof=1)) if len(found) > 1 else math.nan,
        minimum=float(found.min()),
        maximum=float(found.max()),
        low=low,
        high=high,
    )


def bootstrap(values: Sequence[float] | Floats, *, level: float = LEVEL) -> tuple[float, float]:
    """Percentile interval of the mean over resamples (Efron 1979).

    The draws come from a stream of their own, so that equal values give equal intervals.

    Returns
    -------
    tuple of float
        (low, high); NaN for fewer than `FEWEST` values.
    """
    found = _finite(values)
    if len(found) < FEWEST:
        return math.nan, math.nan
    means = _resamples(len(found)) @ found
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sign_flips(differences: Sequence[float] | Floats) -> float:
    """Two-sided p of the paired permutation test: the share of sign flips whose sum is as far off.

    Exact up to `EXACT` differences, so that the smallest possible p is 2^(1 − n): .25 with 3
    seeds, .0625 with 5. Drawn beyond, with the observed one counted in (Phipson & Smyth 2010).

    Parameters
    ----------
    differences
        One a seed, shape (n,), n ≥ 1.
    """
    found = _finite(differences)
    observed = abs(found.sum())
    # Sums of the same numbers in another order differ in the last digits.
    slack = 1e-12 * max(1.0, float(np.abs(found).sum()))
    further = np.abs(_signs(len(found)) @ found) >= observed - slack
    if len(found) <= EXACT:
        return float(further.mean())
    return (int(further.sum()) + 1) / (DRAWS + 1)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Step-down correction for several tests (Holm 1979), by the names of the tests.

    The i-th smallest of m (from 0) is multiplied by m − i; corrected values rise with p and
    stop at 1.
    """
    corrected: dict[str, float] = {}
    largest = 0.0
    for position, (name, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p) - position) * value))
        corrected[name] = largest
    return {name: corrected[name] for name in p}


@dataclass(frozen=True)
class Comparison:
    """A method beside another over the seeds that both have.

    Attributes
    ----------
    n
        Seeds that both have.
    mean, median, minimum, maximum
        Of the differences, method minus the other.
    low, high
        Paired t interval of the mean difference; NaN for fewer than two seeds.
    level
        Of the interval.
    p
        Of the sign-flip test.
    verdict
        ``better`` or ``worse`` if the interval lies wholly on one side of 0, else ``no
        difference shown``; ``no verdict`` for fewer than `FEWEST` seeds.
    needed
        Seeds with which a mean and spread as observed would be settled; None if they are
        settled, too few to say, or more than `MOST_SEEDS`.
    """

    n: int
    mean: float
    median: float
    minimum: float
    maximum: float
    low: float
    high: float
    level: float
    p: float
    verdict: Verdict
    needed: int | None


def compare(
    method: Mapping[int, float],
    other: Mapping[int, float],
    *,
    level: float = LEVEL,
    higher_is_better: bool = True,
) -> Comparison:
    """Compare two methods seed by seed.

    The interval is Student's for paired differences, which keeps its level for a handful of
    seeds where the bootstrap does not: with three seeds that agree in sign a bootstrap interval
    never holds 0, although chance alone makes one in four such triples.

    Parameters
    ----------
    method, other
        Scores by seed; seeds that only one has are left out.
    level
        Of the interval. For m comparisons in one table give 1 − 0.05/m: then with at least 95 %
        all intervals together hold (Bonferroni).
    higher_is_better
        False for forgetting.

    Raises
    ------
    ValueError
        If they have no seed in common.
    """
    seeds = sorted(method.keys() & other.keys())
    if not seeds:
        raise ValueError("there is no seed that both have")
    differences = _finite([method[seed] - other[seed] for seed in seeds])
    n, mean = len(differences), float(differences.mean())
    low, high = _t_interval(differences, level)
    verdict: Verdict = "no verdict"
    needed = None
    if n >= FEWEST:
        above, below = low > 0.0, high < 0.0
        if above or below:
            verdict = "better" if above == higher_is_better else "worse"
        else:
            verdict = "no difference shown"
            needed = _needed(mean, float(differences.std(ddof=1)), level)
    return Comparison(
        n=n,
        mean=mean,
        median=float(np.median(differences)),
        minimum=float(differences.min()),
        maximum=float(differences.max()),
        low=low,
        high=high,
        level=level,
        p=sign_flips(differences),
        verdict=verdict,
        needed=needed,
    )


def _t_interval(differences: Floats, level: float) -> tuple[float, float]:
    n = len(differences)
    if n < 2:
        return math.nan, math.nan
    half = float(_widths(level, max(n, 2))[n - 2] * differences.std(ddof=1))
    mean = float(differences.mean())
    return mean - half, mean + half


def _needed(mean: float, deviation: float, level: float) -> int | None:
    """The smallest n whose interval, with this mean and spread, would not hold 0."""
    settled = _widths(level, MOST_SEEDS)[FEWEST - 2 :] * deviation < abs(mean)
    return FEWEST + int(settled.argmax()) if settled.any() else None


@cache
def _widths(level: float, most: int) -> Floats:
    """Half the width of a t interval over the deviation, for 2 … `most` values."""
    # Student's quantile without scipy.stats, whose import takes longer than a small report.
    from scipy.special import stdtrit

    n = np.arange(2, most + 1)
    widths: Floats = stdtrit(n - 1, (1 + level) / 2) / np.sqrt(n)
    return widths


@lru_cache(maxsize=4)
def _resamples(n: int) -> Floats:
    """How often each of n values is in a resample, over n; shape (`DRAWS`, n)."""
    picks = numpy_stream("bootstrap", n).integers(0, n, (DRAWS, n))
    rows = np.repeat(np.arange(DRAWS), n)
    counts = np.zeros((DRAWS, n))
    np.add.at(counts, (rows, picks.ravel()), 1.0 / n)
    return counts


@lru_cache(maxsize=4)
def _signs(n: int) -> Floats:
    """All sign flips of n values up to `EXACT`, else drawn ones; shape (flips, n)."""
    if n <= EXACT:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    return numpy_stream("flips", n).choice([1.0, -1.0], (DRAWS, n))


def _finite(values: Sequence[float] | Floats) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise ValueError("values must be one or more finite numbers")
    return found
