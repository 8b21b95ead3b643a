"""Statistics over seeds: summaries of one method, and comparisons of two.

On one seed, two methods see the same batches. Differences are therefore paired: taken seed by
seed, never between means.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from clbench.seeds import numpy_stream

LEVEL = 0.95
"""Default level of intervals."""
FEWEST = 3
"""Seeds that a verdict needs."""
MOST_SEEDS = 1000
"""Largest number of seeds that is ever advised."""
EXACT = 14
"""Up to this many seeds, all 2^n sign flips are counted; with more, `DRAWS` are sampled."""
DRAWS = 20_000
"""Resamples of the bootstrap, and sampled sign flips."""

Floats = npt.NDArray[np.float64]
Verdict = Literal["better", "worse", "no difference shown", "no verdict"]


@dataclass(frozen=True)
class Summary:
    """Values over n seeds.

    `deviation` is the sample standard deviation (ddof 1), NaN for one seed; `low` and `high` are
    the interval of `bootstrap`.
    """

    n: int
    mean: float
    median: float
    deviation: float
    minimum: float
    maximum: float
    low: float
    high: float


def summarise(values: Sequence[float]) -> Summary:
    """Return mean, median, range and bootstrap interval of one or more finite values."""
    x = _finite(values)
    deviation = float(x.std(ddof=1)) if len(x) > 1 else math.nan
    mean, median, low, high = float(x.mean()), float(np.median(x)), float(x.min()), float(x.max())
    return Summary(len(x), mean, median, deviation, low, high, *bootstrap(x))


def bootstrap(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean (Efron 1979) at `LEVEL`.

    NaN for fewer than `FEWEST` values. With a handful of seeds the interval is too narrow, so no
    verdict rests on it.
    """
    x = _finite(values)
    if len(x) < FEWEST:
        return math.nan, math.nan
    low, high = np.quantile(x[_resamples(len(x))].mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def sign_flips(differences: Sequence[float] | Floats) -> float:
    """Return the two-sided p of the paired sign-flip (permutation) test.

    It is the share of sign flips whose sum is as far from 0 as the observed one. Up to `EXACT`
    differences it is exact, so at least 2^(1 - n): .25 with 3 seeds, .0625 with 5. With more, flips
    are sampled, and the observed one counts too (Phipson & Smyth 2010).
    """
    x = _finite(differences)
    observed = abs(x.sum())
    # Sums of the same numbers in another order differ in the last digits.
    slack = 1e-12 * max(1.0, float(np.abs(x).sum()))
    extreme = np.abs((_signs(len(x)) * x).sum(1)) >= observed - slack
    if len(x) <= EXACT:
        return float(extreme.mean())
    return (int(extreme.sum()) + 1) / (DRAWS + 1)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Return p values corrected for several tests (Holm 1979), by the names of the tests."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for position, name in enumerate(sorted(p, key=lambda name: p[name])):
        largest = max(largest, min(1.0, (len(p) - position) * p[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p}


@dataclass(frozen=True)
class Comparison:
    """The difference between two methods over the seeds that both have.

    Attributes
    ----------
    pairs, difference
        Number of seeds and mean difference, method minus the other.
    difference_low, difference_high, level
        Paired t interval of the mean difference and its level; NaN for a single seed.
    p
        p of the sign-flip test.
    verdict
        ``better`` or ``worse`` if the interval lies on one side of 0, else ``no difference
        shown``; ``no verdict`` for fewer than `FEWEST` seeds.
    seeds_needed
        Seeds that would settle a difference with this mean and spread; None if it is settled, if
        there are too few to say, or if more than `MOST_SEEDS` are needed.
    """

    pairs: int
    difference: float
    difference_low: float
    difference_high: float
    level: float
    p: float
    verdict: Verdict
    seeds_needed: int | None


def compare(
    method: Mapping[int, float],
    other: Mapping[int, float],
    *,
    level: float = LEVEL,
    higher_is_better: bool = True,
) -> Comparison:
    """Compare two methods seed by seed.

    The interval is Student's t for paired differences, which keeps its level with a handful of
    seeds. A bootstrap interval does not: it excludes 0 whenever three differences have the same
    sign, which happens by chance in one triple out of four.

    Parameters
    ----------
    method, other
        Scores by seed, with a seed in common.
    level
        Level of the interval. At 1 − 0.05/m, the intervals of m comparisons hold jointly at 95 %
        or more (Bonferroni).
    higher_is_better
        Direction of the score.
    """
    seeds = sorted(method.keys() & other.keys())
    x = _finite([method[seed] - other[seed] for seed in seeds])
    n, mean = len(x), float(x.mean())
    deviation = float(x.std(ddof=1)) if n > 1 else math.nan
    widths = _half_widths(level, max(n, MOST_SEEDS))
    half = float(widths[n - 2]) * deviation if n > 1 else math.nan
    low, high = mean - half, mean + half
    verdict: Verdict = "no verdict"
    needed = None
    if n >= FEWEST and not low <= 0.0 <= high:
        verdict = "better" if (low > 0.0) == higher_is_better else "worse"
    elif n >= FEWEST:
        verdict = "no difference shown"
        settled = widths[FEWEST - 2 : MOST_SEEDS - 1] * deviation < abs(mean)
        needed = FEWEST + int(settled.argmax()) if settled.any() else None
    return Comparison(n, mean, low, high, level, sign_flips(x), verdict, needed)


@lru_cache
def _half_widths(level: float, most: int) -> Floats:
    """Return half-widths of t intervals for 2 to `most` values, in units of the deviation."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    n = np.arange(2, most + 1)
    widths: Floats = stdtrit(n - 1, (1 + level) / 2) / np.sqrt(n)
    return widths


# Calls share the draws: a large report makes thousands of calls.
@lru_cache(maxsize=4)
def _resamples(n: int) -> npt.NDArray[np.int64]:
    """Return the positions of n values in each resample, shape (`DRAWS`, n)."""
    return numpy_stream("bootstrap", n).integers(0, n, (DRAWS, n))


@lru_cache(maxsize=4)
def _signs(n: int) -> Floats:
    """Return all sign flips of n values, or a sample for more than `EXACT`; shape (flips, n)."""
    if n <= EXACT:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    return numpy_stream("flips", n).choice([1.0, -1.0], (DRAWS, n))


def _finite(values: Sequence[float] | Floats) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise ValueError("values must be one or more finite numbers")
    return x
