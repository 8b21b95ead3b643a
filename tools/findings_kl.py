"""How much of a score's variance a quadratic in a measure explains: R² and its interval.

A draw of the bootstrap takes seeds with replacement, and methods, too, if R² is that of methods
that the fit has not seen; a cell counts as often as its seed times as often as its method. R² needs
only sums over cells, of powers of the measure and of their products with the score. Those of a
method on a seed are taken once, and those of a draw follow from them.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from clbench.results.statistics import Floats
from tools.findings import plain

DRAWS, SEED = 50_000, 0
AT_ONCE = 2_000
"""Draws whose arrays fit into the cache of a processor."""


class Fit(NamedTuple):
    """R² of a quadratic, its 95 % interval, and the share of draws in which R² is below 0."""

    value: float
    low: float
    high: float
    below_zero: float

    @property
    def ends(self) -> tuple[float, float, float]:
        """R² and its interval."""
        return self.value, self.low, self.high

    def __str__(self) -> str:
        """Return R² with its interval; how far below −1 is noise of the draws."""
        ends = (plain(end, 2) if end >= -1.0 else "< −1" for end in self.ends)
        return "{} [{}, {}]".format(*ends)


def fit(
    frame: pd.DataFrame, measure: str, score: str, *, unseen: bool = False, logarithm: bool = False
) -> Fit:
    """Return R² of a quadratic in a measure, or in its logarithm, with its interval.

    Parameters
    ----------
    frame
        A row for each cell, with ``method``, ``seed``, the measure and the score.
    unseen
        Whether each method is predicted from the others. R² below 0 is then worse than the mean of
        the others.
    """
    x, y = (frame[name].to_numpy(np.float64) for name in (measure, score))
    sums = sums_by_cell(np.log(x) if logarithm else x, y, frame["method"], frame["seed"])
    if not unseen:
        sums = sums.sum(1, keepdims=True)
    seeds, methods = draws(sums.shape[2], sums.shape[1])
    found = []
    for start in range(0, DRAWS, AT_ONCE):
        some = slice(start, start + AT_ONCE)
        drawn = seeds[some] @ sums.swapaxes(1, 2)
        found.append(r_squared(drawn * methods[some] if unseen else drawn, unseen=unseen))
    every = np.concatenate(found)
    low, high = np.percentile(every, [2.5, 97.5])
    value = r_squared(sums.sum(2)[:, None], unseen=unseen)[0]
    return Fit(float(value), float(low), float(high), float((every < 0.0).mean()))


@cache
def draws(seeds: int, methods: int) -> tuple[Floats, Floats]:
    """Return how often each draw has each seed, and each method; shapes (draws, seeds or methods).

    The seeds are those of `SEED`, whatever the number of methods.
    """
    rng = np.random.default_rng(SEED)
    chosen, some = (rng.multinomial(n, np.full(n, 1.0 / n), DRAWS) for n in (seeds, methods))
    return chosen.astype(np.float64), some.astype(np.float64)


def sums_by_cell(x: Floats, y: Floats, methods: pd.Series, seeds: pd.Series) -> Floats:
    """Return sums of x⁰ to x⁴, of y, xy and x²y, and of y², shape (9, methods, seeds).

    x is standardised and y centred first, which keeps `r_squared` accurate and changes no R².
    """
    x, y = (x - x.mean()) / x.std(), y - y.mean()
    terms = np.stack([*(x**power for power in range(5)), y, x * y, x**2 * y, y**2])
    rows, columns = (pd.get_dummies(keys).to_numpy(np.float64) for keys in (methods, seeds))
    sums: Floats = np.einsum("tc,cm,cs->tms", terms, rows, columns)
    return sums


def r_squared(sums: Floats, *, unseen: bool) -> Floats:
    """Return R² of each draw from sums of shape (9, draws, methods), as in `sums_by_cell`.

    The normal equations are solved by elimination.
    """
    total = sums.sum(-1, keepdims=True)
    known = total - sums if unseen else total
    n, s1, s2, s3, s4, t0, t1, t2, _ = known
    first, second = s1 / n, s2 / n
    pivot, rest = s2 - first * s1, s3 - first * s2
    third, moment = rest / pivot, t1 - first * t0
    c = (t2 - second * t0 - third * moment) / (s4 - second * s2 - third * rest)
    b = moment / pivot - third * c
    a = t0 / n - first * b - second * c
    mean = t0 / n
    n, s1, s2, s3, s4, t0, t1, t2, squares = sums if unseen else total
    errors = squares - 2.0 * (a * t0 + b * t1 + c * t2) + a * (a * n + 2.0 * (b * s1 + c * s2))
    errors += b * (b * s2 + 2.0 * c * s3) + c**2 * s4
    spread = squares - mean * (2.0 * t0 - mean * n)
    explained: Floats = 1.0 - errors.sum(-1) / spread.sum(-1)
    return explained
