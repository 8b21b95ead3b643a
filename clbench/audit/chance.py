"""What guessing explains: the flips that it causes, and whether a model is above it at all.

The model of Harmon et al. (2026, arXiv 2510.17776): of an item's k answers, a model knows the right
one or guesses one of the k. `docs/audit-methods.md` derives what follows.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrc, ndtri, stdtr

from clbench.audit.changes import clopper_pearson
from clbench.audit.scores import Floats, Paired
from clbench.results.statistics import LEVEL


class Share(NamedTuple):
    """A share of the items, and its interval at `LEVEL`."""

    value: float
    low: float
    high: float


def beyond_chance(paired: Paired, choices: int) -> tuple[Share, Share]:
    """Return the shares of lost and of gained items that guessing among `choices` does not explain.

    By chance, (1 − a)(1 − b) / (k − 1) of the items are lost, and as many are gained, for
    accuracies a and b of both models. What is left is at least 0.
    """
    lost = _beyond(paired.base, paired.tuned, choices)
    return lost, _beyond(paired.tuned, paired.base, choices)


def _beyond(before: Floats, after: Floats, choices: int) -> Share:
    """Return the share of the items that are right before and wrong after, beyond chance.

    Its interval combines the exact one of the flips with a normal one of those of chance, by the
    method of variance estimates recovery (Zou & Donner 2008, Statistics in Medicine 27).
    """
    n, flips = len(before), before * (1.0 - after)
    a, b = 1.0 - float(before.mean()), 1.0 - float(after.mean())  # the wrong shares
    by_chance = ((1.0 - before) * b + (1.0 - after) * a) / (choices - 1)  # linearised
    share, left = float(flips.mean()), float(flips.mean()) - a * b / (choices - 1)
    low, high = clopper_pearson(int(flips.sum()), n, LEVEL)
    half = float(ndtri((1.0 + LEVEL) / 2) * by_chance.std()) / math.sqrt(n)
    spread = float(flips.std() * by_chance.std())
    covariance = float(np.mean(flips * by_chance)) - share * float(by_chance.mean())
    r = covariance / spread if spread else 0.0
    below, above = (
        math.sqrt(max(arm**2 - 2 * r * arm * half + half**2, 0.0))
        for arm in (share - low, high - share)
    )
    return Share(max(0.0, left), max(0.0, left - below), max(0.0, left + above))


def p_above(scores: Floats, chance: float) -> float:
    """Return the one-sided p of a mean score that guessing has, or less.

    Exact for items that are right or wrong (binomial test); else by a t test.
    """
    n = len(scores)
    if np.isin(scores, (0.0, 1.0)).all():
        return float(bdtrc(scores.sum() - 1, n, chance)) if scores.any() else 1.0
    error = float(scores.std(ddof=1)) / math.sqrt(n)
    return float(stdtr(n - 1, (chance - float(scores.mean())) / error)) if error else 1.0
