"""Changes between two models on the same items: tests, intervals, and the verdicts on them.

The k changes between two models are a family. Their intervals have the level 1 − α/k (Bonferroni;
Dunn 1961, Journal of the American Statistical Association 56), so they hold jointly at 1 − α or
more, and so do all verdicts, which are read off them: the interval of a false one misses the truth.
`benchmarks/audit.py` simulates the errors.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar

from scipy.optimize import brentq
from scipy.special import bdtr, betaincinv, ndtri, stdtr, stdtrit

from clbench.audit.scores import Bools, Floats
from clbench.results.statistics import ALPHA, AUDIT_WORDS, POWER, Verdict, Word

Bounds = tuple[float, float]
Floor = Callable[[float], float]
"""Function from a level to the half width of the interval of what models differ from themselves."""
Key = TypeVar("Key", bound=Hashable)
MOST_TIMES = 1e6
"""Most times as many items that are advised."""
LEAST_P = 1e-15
"""Smallest p that is told apart from 0."""


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
        Function from a level to the bounds of the difference; a second argument is how many times
        as many items there are, if they go on as they began.
    variance
        That of the difference of one item.
    largest
        Difference of the item that the interval has more (`mean_change`), if it has one.
    n
        Items; 0 if it does not matter how many more would do.
    """

    difference: float
    p: float
    interval: Callable[..., Bounds]
    variance: float = 0.0
    largest: float = 0.0
    n: int = 0


UNCHANGED = Sample(0.0, 1.0, lambda level, times=1.0: (0.0, 0.0))
"""The change between two models with the same weights."""


@dataclass(frozen=True)
class Change:
    """A judged change.

    Attributes
    ----------
    difference, low, high
        Tuned minus base, below 0 is worse, and its interval.
    level
        Level of the interval; all intervals of a family hold jointly at 1 − its error rate.
    p, p_family
        Two-sided p of this change alone, and corrected (Bonferroni) for the family and for the
        share of the error rate that is spent here.
    verdict
        ``equivalent`` if the interval lies within the margin; else ``worse`` or ``better`` if it
        excludes 0; else ``no difference shown``.
    items_needed
        About how many items would end ``no difference shown`` if the change is truly as observed;
        None if there is another verdict, or only more runs would end it.
    """

    difference: float
    low: float
    high: float
    level: float
    p: float
    p_family: float
    verdict: Verdict
    items_needed: int | None = None

    @property
    def word(self) -> Word:
        """The verdict in the words of an audit."""
        return AUDIT_WORDS[self.verdict]

    def __str__(self) -> str:
        values = (round(v, 3) + 0.0 for v in (self.difference, self.low, self.high))
        return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*values)

    def remedy(self, unit: str) -> str:
        """Return how many items would settle a change that is unclear, in words; else nothing."""
        if self.verdict != "no difference shown":
            return ""
        if self.items_needed is None:
            return "; settled only by more runs"
        return f"; settled by about {float(f'{self.items_needed:.2g}'):,.0f} {unit}"

    def to_json(self, key: str = "verdict") -> dict[str, Any]:
        """Return plain values, with the audit's word under `key`."""
        values = {**asdict(self), "p_holm": self.p_family}  # as earlier versions call p_family
        values.pop("verdict")
        return {**values, key: self.word}


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
    def of(cls, base: Bools, tuned: Bools) -> Self:
        """Return the flips between two models' hits, shape (n,)."""
        return cls(int((base & ~tuned).sum()), int((tuned & ~base).sum()), len(base))

    @property
    def p(self) -> float:
        """Exact two-sided p of McNemar's test: flips go either way with probability ½."""
        flips, fewer = self.lost + self.gained, min(self.lost, self.gained)
        return min(1.0, 2.0 * float(bdtr(fewer, flips, 0.5))) if flips else 1.0

    def interval(self, level: float, times: float = 1.0) -> Bounds:
        """Return the interval of the difference in accuracy, tuned minus base.

        `times` is how many times as many flips and items there are.

        It is the hull of two intervals: the exact one given the number of flips (Clopper & Pearson
        1934), which excludes 0 exactly where McNemar's test rejects, and the score interval of
        Tango (1998, Statistics in Medicine 17), which also covers the chance in that number.
        """
        gained, lost, n = self.gained * times, self.lost * times, self.n * times
        m = gained + lost
        low, high = clopper_pearson(gained, m, level)
        score = tango(gained, lost, n, level)
        return min(m * (2 * low - 1) / n, score[0]), max(m * (2 * high - 1) / n, score[1])

    def sample(self) -> Sample:
        """Return the change to judge."""
        difference, variance = self.gained - self.lost, max(self.gained + self.lost, 1) / self.n
        return Sample(difference / self.n, self.p, self.interval, variance, n=self.n)


def clopper_pearson(k: float, n: float, level: float) -> Bounds:
    """Return the exact interval of a share of which k of n were seen (Clopper & Pearson 1934)."""
    tail = (1.0 - level) / 2
    low = float(betaincinv(k, n - k + 1, tail)) if k else 0.0
    return low, float(betaincinv(k + 1, n - k, 1.0 - tail)) if k < n else 1.0


def tango(gained: float, lost: float, n: float, level: float) -> Bounds:
    """Return the score interval of a difference of paired shares, (gained − lost) / n.

    Tango (1998), section 3: the values δ for which the statistic below lies within the normal
    quantiles; its variance is the restricted maximum-likelihood estimate under δ.
    """
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


def mean_change(base: Floats, tuned: Floats, largest: float | None = None) -> Sample:
    """Return the change of a mean over paired items, such as minus the loss of each text.

    The test is a paired t test. Differences that are all 0 have an interval of width 0.

    With `largest`, the largest difference of an item, both bounds are those of a paired t test with
    one item more that differs by it: down for the lower bound, up for the upper one. It stands for
    rare differences that the items do not show, because of which intervals of t miss skewed means
    too often (`benchmarks/logs.py skew`).
    """
    differences = tuned - base
    n, mean, variance = len(differences), float(differences.mean()), float(differences.var(ddof=1))
    if variance == 0.0 and not largest:
        return Sample(mean, 1.0 if mean == 0.0 else 0.0, lambda level, times=1.0: (mean, mean))

    def with_item(sign: float, count: float) -> tuple[float, float]:
        """Return the mean of as many items and its error, with one item more, if there is one."""
        if largest is None:
            return mean, math.sqrt(variance / count)
        far = sign * largest - mean
        spread = ((count - 1) * variance + far**2 * count / (count + 1)) / count
        return mean + far / (count + 1), math.sqrt(spread / (count + 1))

    def interval(level: float, times: float = 1.0) -> Bounds:
        (lower, below), (upper, above) = with_item(-1.0, n * times), with_item(1.0, n * times)
        quantile = float(stdtrit(n * times - (largest is None), (1.0 + level) / 2))
        return lower - quantile * below, upper + quantile * above

    nearer, error = with_item(-1.0 if mean > 0 else 1.0, n)
    ratio = nearer / error if mean > 0 else -nearer / error
    p = min(1.0, float(2.0 * stdtr(n - (largest is None), -ratio)))
    return Sample(mean, p, interval, variance, largest or 0.0, n)


def widened(sample: Sample, floor: Floor, most: Bounds = (-math.inf, math.inf)) -> Sample:
    """Return a change that is also uncertain for another reason, independent of its items.

    `floor` is the half width of that uncertainty's interval at a level, which more items do not
    narrow. Squares of distances add up (the method of variance estimates recovery, Zou & Donner
    2008, Statistics in Medicine 27), so a change is shown only beyond the floor. No bound exceeds
    the least and the largest change that can be, `most`.
    """
    middle = sample.difference

    def interval(level: float, times: float = 1.0) -> Bounds:
        (low, high), half = sample.interval(level, times), floor(level)
        low, high = math.hypot(middle - low, half), math.hypot(high - middle, half)
        return max(most[0], middle - low), min(most[1], middle + high)

    def excess(log_p: float) -> float:  # above 0 if the interval of level 1 − p excludes 0
        low, high = interval(-math.expm1(log_p))
        return low if middle > 0 else -high

    p, least = 1.0, math.log(LEAST_P)
    if middle and excess(0.0) > 0:
        p = math.exp(brentq(excess, least, 0.0)) if excess(least) < 0 else LEAST_P
    return replace(sample, p=p, interval=interval)


def items_needed(
    variance: float, change: float, rate: float, power: float = POWER, largest: float = 0.0
) -> int:
    """Return how many items show a change by a two-sided test with an error rate.

    (z₁ + z₂)² variance / change², with the normal quantiles z of 1 − rate/2 and the power. The
    variance of flips is their share (Miettinen 1968, Biometrics 24; that without change). With the
    item more of `mean_change`, n solves change = largest / n + (z₁ + z₂) √(variance / n +
    (largest / n)²).
    """
    q2 = float(ndtri(1.0 - rate / 2) + ndtri(power)) ** 2
    half = largest * change + q2 * variance / 2
    root = math.sqrt(half**2 + (largest * change) ** 2 * max(q2 - 1.0, 0.0))
    return math.ceil((half + root) / change**2)


def times_needed(settles: Callable[[float], bool]) -> float | None:
    """Return about how many times as many items settle a question; None if a million do not."""
    least, most = 0.0, math.log(MOST_TIMES)
    if not settles(MOST_TIMES):
        return None
    while most - least > 0.01:
        middle = (least + most) / 2
        least, most = (least, middle) if settles(math.exp(middle)) else (middle, most)
    return math.exp(most)


def judge(samples: Mapping[Key, Sample], margin: float, alpha: float = ALPHA) -> dict[Key, Change]:
    """Return the changes of a family, judged; `margin` is the largest that does not matter."""
    tests = max(1, sum(sample is not UNCHANGED for sample in samples.values()))
    rate = alpha / tests
    changes = {}
    for name, sample in samples.items():
        low, high = sample.interval(1.0 - rate)
        verdict, needed = verdict_on((low, high), margin), None
        if verdict == "no difference shown" and sample.n:

            def settles(times: float, sample: Sample = sample) -> bool:
                bounds = sample.interval(1.0 - rate, times)
                return verdict_on(bounds, margin) != "no difference shown"

            if times := times_needed(settles):
                size, power = abs(sample.difference), (1.0 + POWER) / 2
                distance = max(size, margin - size)  # to exclude 0, or lie within both margins
                needed = items_needed(sample.variance, distance, rate, power, sample.largest)
                needed = max(needed, math.ceil(times * sample.n))
        p = sample.p, min(1.0, ALPHA / rate * sample.p)
        changes[name] = Change(sample.difference, low, high, 1.0 - rate, *p, verdict, needed)
    return changes


def verdict_on(bounds: Bounds, margin: float) -> Verdict:
    """Return what an interval says of a change."""
    low, high = bounds
    if -margin < low and high < margin:
        return "equivalent"
    return "worse" if high < 0 else "better" if low > 0 else "no difference shown"
