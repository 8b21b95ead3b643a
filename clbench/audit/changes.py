"""Changes between two models on the same items: tests, intervals, and the words for them.

The tests of one pair of models are a family, corrected after Holm (1979). The interval of a change
has the level of its step in Holm's procedure, so it excludes 0 exactly where the test rejects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from clbench.results.statistics import ALPHA

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Word = Literal["forgot", "kept", "gained", "unclear"]
Bounds = tuple[float, float]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Sample:
    """What is known of a change before it is judged with others.

    Attributes
    ----------
    difference
        Tuned minus base; below 0 is worse.
    p
        Two-sided p of this change alone.
    interval
        Function from a level to the bounds of the difference.
    """

    difference: float
    p: float
    interval: Callable[[float], Bounds]


UNCHANGED = Sample(0.0, 1.0, lambda level: (0.0, 0.0))
"""The change between two models with the same weights."""


@dataclass(frozen=True)
class Change:
    """A judged change.

    Attributes
    ----------
    difference, low, high
        Tuned minus base, below 0 is worse, and its interval.
    level
        Level of the interval.
    p, p_holm
        Two-sided p of this change alone, and corrected for the family.
    word
        ``kept`` if the interval lies within the margin; else ``forgot`` or ``gained`` if it
        excludes 0; else ``unclear``.
    """

    difference: float
    low: float
    high: float
    level: float
    p: float
    p_holm: float
    word: Word


@dataclass(frozen=True)
class Flips:
    """Items that only one of two models gets right.

    Attributes
    ----------
    lost, gained
        Items that only the base model, and only the tuned one, gets right.
    n
        All items.
    """

    lost: int
    gained: int
    n: int

    @classmethod
    def of(cls, base: Bools, tuned: Bools) -> Flips:
        """Return the flips between two models' hits, shape (n,)."""
        return cls(int((base & ~tuned).sum()), int((tuned & ~base).sum()), len(base))

    @property
    def p(self) -> float:
        """Exact two-sided p of McNemar's test: flips go either way with probability ½."""
        from scipy.special import bdtr

        flips, fewer = self.lost + self.gained, min(self.lost, self.gained)
        return min(1.0, 2.0 * float(bdtr(fewer, flips, 0.5))) if flips else 1.0

    def interval(self, level: float) -> Bounds:
        """Return the interval of the difference in accuracy, tuned minus base.

        It is the hull of two intervals: the exact one given the number of flips (Clopper & Pearson
        1934), which excludes 0 exactly where McNemar's test rejects, and the score interval of
        Tango (1998, Statistics in Medicine 17), which also covers the chance in that number.
        """
        exact, score = self._given_flips(level), tango(self.gained, self.lost, self.n, level)
        return min(exact[0], score[0]), max(exact[1], score[1])

    def _given_flips(self, level: float) -> Bounds:
        from scipy.special import betaincinv

        k, m, tail = self.gained, self.gained + self.lost, (1.0 - level) / 2
        low = float(betaincinv(k, m - k + 1, tail)) if k else 0.0
        high = float(betaincinv(k + 1, m - k, 1.0 - tail)) if k < m else 1.0
        return m * (2 * low - 1) / self.n, m * (2 * high - 1) / self.n

    def sample(self) -> Sample:
        """Return the change to judge."""
        return Sample((self.gained - self.lost) / self.n, self.p, self.interval)


def tango(gained: int, lost: int, n: int, level: float) -> Bounds:
    """Return the score interval of a difference of paired shares, (gained − lost) / n.

    Tango (1998), section 3: the values δ for which the statistic below lies within the normal
    quantiles; its variance is the restricted maximum-likelihood estimate under δ.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    quantile = float(ndtri((1.0 + level) / 2))

    def statistic(delta: float) -> float:
        a, c = 2.0 * n, -lost * delta * (1.0 - delta)
        b = -gained - lost + (2.0 * n - gained + lost) * delta
        share = (math.sqrt(max(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)
        variance = n * (2.0 * share + delta * (1.0 - delta))
        distance = gained - lost - n * delta
        return math.copysign(math.inf, distance) if variance <= 0 else distance / variance**0.5

    edge = 1.0 - 1e-12

    def bound(sign: float) -> float:
        def excess(delta: float) -> float:  # falls as delta grows
            return max(min(statistic(delta) - sign * quantile, 1e9), -1e9)

        if excess(-edge) * excess(edge) > 0:
            return -sign
        return float(brentq(excess, -edge, edge, xtol=1e-12))

    return bound(1.0), bound(-1.0)


def mean_change(base: Floats, tuned: Floats) -> Sample:
    """Return the change of a mean over paired items, such as minus the loss of each text.

    The test is a paired t test. Differences that are all 0 have an interval of width 0.
    """
    from scipy.special import stdtr, stdtrit

    differences = tuned - base
    n, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    if error == 0.0:
        return Sample(mean, 1.0 if mean == 0.0 else 0.0, lambda level: (mean, mean))

    def interval(level: float) -> Bounds:
        half = float(stdtrit(n - 1, (1.0 + level) / 2)) * error
        return mean - half, mean + half

    return Sample(mean, float(2.0 * stdtr(n - 1, -abs(mean) / error)), interval)


def holm(p: Sequence[float], alpha: float = ALPHA) -> tuple[list[float], list[float]]:
    """Return corrected p values and the error rate of each test's interval, after Holm (1979).

    The i-th smallest of k p values is multiplied by k − i + 1, and by no less than those before
    it. The error rate is that of the step at which it is rejected, or at which the procedure stops.
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected, rates = [0.0] * len(p), [0.0] * len(p)
    largest, stopped = 0.0, 0
    for rank, i in enumerate(order):
        left = len(p) - rank
        largest = max(largest, min(1.0, left * p[i]))
        corrected[i] = largest
        if largest >= alpha and not stopped:
            stopped = left
        rates[i] = alpha / (stopped or left)
    return corrected, rates


def judge(samples: Mapping[Key, Sample], margin: float, alpha: float = ALPHA) -> dict[Key, Change]:
    """Return the changes of a family, with words; `margin` is the largest that does not matter."""
    corrected, rates = holm([sample.p for sample in samples.values()], alpha)
    changes = {}
    for (name, sample), p, rate in zip(samples.items(), corrected, rates, strict=True):
        low, high = sample.interval(1.0 - rate)
        changes[name] = Change(
            sample.difference, low, high, 1.0 - rate, sample.p, p, _word(low, high, margin)
        )
    return changes


def _word(low: float, high: float, margin: float) -> Word:
    if -margin < low and high < margin:
        return "kept"
    if high < 0:
        return "forgot"
    return "gained" if low > 0 else "unclear"
