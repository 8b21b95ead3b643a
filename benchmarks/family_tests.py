"""The test of `clbench.results.statistics.compare`, and competitors, on many drawn families.

Differences are counted in rows of a data set and have the shape (draws, methods, groups, seeds).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from clbench.results.statistics import ALPHA, COLLAPSE, LIKE, collapse_p, unseen

Floats = npt.NDArray[np.float64]
Test = Callable[[Floats], Floats]
ROWS = 400
"""Rows of a data set."""


def t_test(x: Floats, variance: Floats, freedom: float | Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(x.mean(-1)) / np.sqrt(variance / x.shape[-1])
    p: Floats = 2.0 * stats.t.sf(np.nan_to_num(t, nan=0.0, posinf=np.inf), freedom)
    return p


def paired_t(x: Floats) -> Floats:
    """The paired t test."""
    return t_test(x, x.var(-1, ddof=1), x.shape[-1] - 1)


def with_steps(x: Floats) -> Floats:
    """The paired t test with the squared step of the score added to the variance."""
    return t_test(x, x.var(-1, ddof=1) + 1.0, x.shape[-1] - 1)


def clbench(x: Floats, alpha: float = ALPHA) -> Floats:
    """The test of clbench: as `with_steps`, but 1 where a collapse withholds a verdict."""
    _, methods, groups, n = x.shape
    level, p = alpha / (methods * groups), with_steps(x)
    found = p < level
    if not found.any() or collapse_p(n, 0.0) <= level:
        return p
    ordered = np.sort(x, -1)
    gaps = np.diff(ordered)
    below = gaps.argmax(-1)[..., None]
    low, high = (np.take_along_axis(ordered, below + side, -1)[..., 0] for side in (0, 1))
    width = np.maximum(low - ordered[..., 0], ordered[..., -1] - high)
    least = max(COLLAPSE, 3.0 / np.sqrt(2.0 * ROWS)) * ROWS
    is_gap = high - low >= np.maximum(least, width)
    axes = (1, 2) if groups * unseen(methods + 1, n) > alpha else 1
    gap = np.where(is_gap, high - low, np.inf).min(axes, keepdims=True)
    largest = np.where(is_gap, high - low, -np.inf).max(axes, keepdims=True)
    strong, weak = np.inf, 0.0  # the t statistic that `collapse_p` needs lies between
    for _ in range(50):
        middle = (weak + min(strong, 2.0 * weak + 1e3)) / 2
        weak, strong = (weak, middle) if collapse_p(n, middle) <= level else (middle, strong)
    mean, error = np.abs(x.mean(-1)), np.sqrt((x.var(-1, ddof=1) + 1.0) / n)
    half = stats.t.ppf(1.0 - level / 2, n - 1) * error
    p[found & (mean >= gap / 2) & (mean < LIKE * largest + half) & (mean < strong * error)] = 1.0
    return p


def sign_flips(x: Floats) -> Floats:
    """The exact sign-flip test."""
    n = x.shape[-1]
    signs = np.array(np.meshgrid(*[[1.0, -1.0]] * n)).reshape(n, -1)
    sums, observed = np.abs(x @ signs), np.abs(x.sum(-1, keepdims=True))
    p: Floats = (sums >= observed - 1e-9).mean(-1)
    return p


def pooled(x: Floats) -> Floats:
    """A block design: one variance for all methods of a scenario and score."""
    variance = (x.var(-1, ddof=1) + 1.0).mean(1, keepdims=True)
    return t_test(x, variance, x.shape[1] * (x.shape[-1] - 1))


def moderated(x: Floats) -> Floats:
    """The moderated t test (Smyth 2004): weight and size of the shared variance are estimated."""
    from scipy.special import digamma, polygamma

    freedom = x.shape[-1] - 1
    variance = x.var(-1, ddof=1) + 1.0
    logs = np.log(variance) - digamma(freedom / 2) + np.log(freedom / 2)
    mean = logs.mean((1, 2), keepdims=True)
    excess = logs.var((1, 2), ddof=1, keepdims=True) - polygamma(1, freedom / 2)
    most = (logs[0].size - 1.0) * freedom
    grid = np.geomspace(0.1, 1e4, 400)  # trigamma falls, so its inverse is looked up
    weight = 2 * np.interp(-np.maximum(excess, 1e-9), -polygamma(1, grid), grid)
    weight = np.minimum(weight, most)
    shared = np.exp(mean + digamma(weight / 2) - np.log(weight / 2))
    mixed = (weight * shared + freedom * variance) / (weight + freedom)
    return t_test(x, mixed, weight + freedom)


def leaning(x: Floats) -> Floats:
    """As `with_steps`, but small variances of a group are raised towards its 0.6 quantile.

    Which adds up to two degrees of freedom.
    """
    variance, freedom = x.var(-1, ddof=1) + 1.0, x.shape[-1] - 1
    shared = np.quantile(variance, 0.6, axis=1, method="higher", keepdims=True)
    weight = np.where(variance < shared, min(2.0, freedom / 2), 0.0)
    mixed = (weight * shared + freedom * variance) / (weight + freedom)
    return t_test(x, mixed, weight + freedom)


TESTS: dict[str, Test] = {
    "clbench": clbench,
    "no collapses": with_steps,
    "paired t": paired_t,
    "leaning": leaning,
    "sign flips": sign_flips,
    "pooled": pooled,
    "moderated": moderated,
}
