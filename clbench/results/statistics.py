"""Statistics over seeds: summaries, families of comparisons, looks, items and ranks.

On one seed, two methods see the same batches. Differences are therefore paired: taken seed by
seed, never between means. `benchmarks/verdicts.py` simulates the error rates of the tests.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np

from clbench.core.errors import count
from clbench.suite.schema import FEWEST

LEVEL = 0.95
"""Level of intervals of one value."""
ALPHA = 0.05
"""Error rate of a family of comparisons."""
POWER = 0.8
"""Default power of a planned comparison."""
ROUNDING = 1e-9
"""Standard deviations up to this one are rounding errors."""
COLLAPSE = 0.1
"""Least loss of a collapsed run: a tenth of the rows."""
LIKE = 1.5
"""Largest loss that counts as a collapse like those seen, as a multiple of the largest of these."""

Floats = np.typing.NDArray[np.float64]
Verdict = Literal["better", "worse", "equivalent", "no difference shown", "no verdict"]
Word = Literal["forgot", "kept", "gained", "unclear"]
AUDIT_WORDS: Mapping[Verdict, Word] = {
    "worse": "forgot",
    "equivalent": "kept",
    "better": "gained",
    "no difference shown": "unclear",
}
"""The four verdicts in the words of an audit, which say what became of the base model."""
Key = TypeVar("Key", bound=Hashable)
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Summary:
    """Values over n seeds.

    `deviation` is the sample standard deviation (ddof 1), NaN for one seed; `low` and `high` are
    Student's t interval of the mean at `LEVEL`, NaN for fewer than `FEWEST` seeds.
    """

    n: int
    mean: float
    median: float
    deviation: float
    minimum: float
    maximum: float
    low: float
    high: float


def summarise(values: Sequence[float], step: float = 0.0, error: float = 0.0) -> Summary:
    """Return mean, median, range and t interval of one or more finite values.

    `step` is the smallest change that a value can show. Its square is added to the variance of the
    interval, as in `compare`, so that equal values on a few seeds do not count as certain. `error`
    is as in `Differences`.
    """
    x = _finite(values)
    mean, median = float(x.mean()), float(np.median(x))
    deviation = float(x.std(ddof=1)) if len(x) > 1 else math.nan
    half = math.nan
    if len(x) >= FEWEST:
        sampling = math.hypot(deviation, step) / math.sqrt(len(x))
        half = t_quantile(LEVEL, len(x) - 1) * math.hypot(sampling, error)
    low, high = float(x.min()), float(x.max())
    return Summary(len(x), mean, median, deviation, low, high, mean - half, mean + half)


@dataclass(frozen=True)
class Differences:
    """Differences of a score between a method and the reference, one for each common seed.

    `step` is the smallest difference that the score can show: 1 / rows. `error` is a standard error
    of their mean beside that of sampling seeds, such as the bend of a curve that is interpolated.
    """

    values: tuple[float, ...]
    step: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """A method against the reference, as one of a family of comparisons.

    Attributes
    ----------
    pairs, difference
        Number of seeds and mean difference.
    spread, freedom
        Standard deviation of a difference that the test uses, and its degrees of freedom; NaN for
        a single seed.
    difference_low, difference_high, level
        Interval of the difference; the intervals of the family hold jointly at 1 − its error rate.
    p, p_family
        Two-sided p of this comparison alone, and corrected for the family (Bonferroni). Like the
        interval, NaN where there is no verdict.
    verdict
        ``better`` or ``worse`` if `p_family` is below the error rate, exactly when the interval
        excludes 0; else ``equivalent`` if the interval lies within the margin;
        else ``no difference shown``; ``no verdict`` for fewer than `FEWEST` seeds, if the
        differences do not vary and the step of the score is unknown, or if runs may have collapsed.
    why
        Why there is no verdict; if runs collapse, with the number of seeds that could bear one.
    """

    pairs: int
    difference: float
    spread: float
    freedom: float
    difference_low: float
    difference_high: float
    level: float
    p: float
    p_family: float
    verdict: Verdict
    why: str = ""


def modes(values: Sequence[float], step: float) -> tuple[float, int]:
    """Return the gap between two modes of a score over seeds, and how many values lie below it.

    There are two if the largest gap is at least `COLLAPSE`, three standard errors of a difference
    between samples of 1 / step rows (each sqrt(step / 2) at most), and the width of either side.
    Else, and for fewer than `FEWEST` values or an unknown step, the gap is infinite.
    """
    x = np.sort(_finite(values))
    if len(x) < FEWEST or step <= 0.0:
        return math.inf, 0
    gaps = np.diff(x)
    below = int(gaps.argmax()) + 1
    gap, width = float(gaps[below - 1]), max(x[below - 1] - x[0], x[-1] - x[below])
    least = max(COLLAPSE, 3.0 * math.sqrt(step / 2.0), width)
    return (gap, below) if gap >= least - ROUNDING else (math.inf, 0)


def hidden_gap(samples: Iterable[Differences], scenarios: int) -> float:
    """Return the smallest gap of `modes` in one of several scenarios, as their mean shows it."""
    gaps = [modes(each.values, each.step)[0] / scenarios for each in samples if each.values]
    return min(gaps, default=math.inf)


def collapse_p(n: int, t: float) -> float:
    """Return the p of a t statistic of n differences between identical methods that collapse.

    If every run collapses with probability q, apart from the others, a difference is −d, 0 or d
    with probabilities r, 1 − 2r and r, where r = q(1 − q) is at most 1/4. Returned is the
    probability of that t or more, of either sign, at r = 1/4 and without other noise. It is at
    least 2·4⁻ⁿ: all runs of one method collapse, and none of the other.
    """
    from scipy.special import gammaln

    up, down = np.indices((n + 1, n + 1))
    logs = -sum(gammaln(k + 1) for k in (up, down, n - up - down))  # −∞ for a negative k
    probability = np.exp(gammaln(n + 1) + logs - (n + up + down) * math.log(2.0))
    sums = (up - down) ** 2.0
    reaches = sums * (n - 1) >= t**2 * (n * (up + down) - sums) * (1.0 - ROUNDING)
    return float(probability[reaches & (sums > 0.0)].sum())


def unseen(methods: int, n: int) -> float:
    """Return how likely identical methods that collapse differ, but none has two modes, at most.

    All n runs of some of them collapse, and none of the others.
    """
    rate = np.linspace(0.0, 0.5, 101)
    every, none = rate**n, (1.0 - rate) ** n
    return float(np.max((every + none) ** methods - every**methods - none**methods))


def compare(
    groups: Mapping[Key, Mapping[Name, Differences]],
    *,
    alpha: float = ALPHA,
    family: int | None = None,
    margin: float = 0.0,
    lower_is_better: Collection[Key] = (),
    known_gaps: Mapping[Key, float] = MappingProxyType({}),
) -> dict[tuple[Key, Name], Comparison]:
    """Compare methods with a reference by a family of tests with one error rate.

    The test is a paired t test with the squared step of the score added to the variance, so that
    the same difference of a few rows on three seeds does not count as certain. The whole family is
    corrected after Bonferroni, so that p values and intervals agree. Tests that share variances
    between methods find more, but err too often where methods differ in noise or share it
    (`benchmarks/verdicts.py`).

    On a few seeds, all runs of one method may collapse by chance, and none of another, and the t
    test takes agreement for certainty. Where differences of a group have two `modes`, one of at
    least half of their smallest gap must also be significant by `collapse_p`, or gets no verdict,
    unless its whole interval lies beyond `LIKE` times the largest gap, which such collapses do not
    explain. Where a group is likely to show no modes (`unseen`), those of the whole family count.

    Parameters
    ----------
    groups
        Differences by method, for each group of a family: a score of a scenario.
    alpha, family
        Error rate of the family, and its size: by default the comparisons with `FEWEST` pairs.
    margin
        Largest difference that does not matter.
    lower_is_better
        Groups whose score is better when lower.
    known_gaps
        Gaps between modes that differences of a group hide, as means over scenarios do.

    Returns
    -------
    dict
        A comparison for each group and method with at least one pair.
    """
    from scipy.special import stdtr  # scipy.stats takes a second to import

    tests = [
        (group, name, sample)
        for group, samples in groups.items()
        for name, sample in samples.items()
        if sample.values
    ]
    if family is None:
        family = max(1, sum(len(sample.values) >= FEWEST for _, _, sample in tests))
    level = 1.0 - alpha / family
    gaps: dict[Key, list[float]] = {}
    for group, _, sample in tests:
        some = gaps.setdefault(group, [known_gaps.get(group, math.inf)])
        some.append(modes(sample.values, sample.step)[0])
    everywhere = [gap for some in gaps.values() for gap in some]
    result: dict[tuple[Key, Name], Comparison] = {}
    for group, name, sample in tests:
        x = _finite(sample.values)
        mean, n = float(x.mean()), len(x)
        variance, freedom = math.nan, math.nan
        if n > 1:
            added = sample.step**2 + n * sample.error**2
            variance, freedom = float(x.var(ddof=1)) + added, n - 1.0
        p = p_family = half = math.nan
        verdict: Verdict = "no verdict"
        why = ""
        if n < FEWEST:
            why = f"{count(n, 'common seed')}, {FEWEST} are needed"
        elif variance <= ROUNDING**2:
            why = "the differences do not vary, and the step of the score is unknown"
        else:
            error = math.sqrt(variance / n)
            p = float(2.0 * stdtr(freedom, -abs(mean) / error))
            p_family = min(family * p, 1.0)
            half = t_quantile(level, freedom) * error
            verdict = "equivalent" if abs(mean) + half < margin else "no difference shown"
            if p_family < alpha:
                verdict = "better" if (mean < 0) == (group in lower_is_better) else "worse"
                is_hidden = len(gaps) * unseen(len(gaps[group]), n) > alpha
                seen = sorted(filter(math.isfinite, everywhere if is_hidden else gaps[group]))
                is_like = seen and seen[0] / 2 <= abs(mean) < LIKE * seen[-1] + half
                if is_like and collapse_p(n, mean / error) > alpha / family:
                    verdict, p, p_family, half = "no verdict", math.nan, math.nan, math.nan
                    seeds = max(math.ceil(math.log(2.0 * family / alpha, 4.0)), n + 1)
                    why = f"runs collapse: to tell it from chance takes {seeds} seeds or more"
        spread = math.sqrt(variance)
        result[group, name] = Comparison(
            n, mean, spread, freedom, mean - half, mean + half, level, p, p_family, verdict, why
        )
    return result


def spend(looks: Sequence[int]) -> list[float]:
    """Return the error rate of each look at a growing number of seeds; they sum to `ALPHA`.

    The rates are the increments of the spending function α t² with t = seeds / most seeds (Kim &
    DeMets 1987, power family), which leaves most of it to the last look, so that a run that goes on
    to its end loses little. Whatever the dependence between looks, the error rate of all of them
    together is at most `ALPHA`.
    """
    spent = [ALPHA * (look / looks[-1]) ** 2 for look in looks]
    return [now - before for now, before in zip(spent, [0.0, *spent], strict=False)]


def look_at(looks: Sequence[int], seeds: int) -> int:
    """Return the position of the look that a run with that many seeds has reached or awaits."""
    return sum(look < seeds for look in looks[:-1])


def crossed_interval(table: Floats, level: float = LEVEL, step: float = 0.0) -> tuple[float, float]:
    """Return the interval of the mean of a table whose rows and columns are both samples.

    Rows may be seeds and columns the rows of a data set, or scenarios. In the model
    x[i, j] = mean + row i + column j + rest with independent random effects, the squared error of
    the mean is (MS rows + MS columns − MS rest) / size, with Satterthwaite's degrees of freedom
    (Searle, Casella & McCulloch 1992, section 4.3). Fewer than two rows or columns give NaN. `step`
    is the smallest change that the mean of a row can show; its square is added to the variance of
    the rows' means, as in `compare`.
    """
    a, b = table.shape
    if min(a, b) < 2:
        return math.nan, math.nan
    mean = float(table.mean())
    rows, columns = table.mean(1), table.mean(0)
    rest = table - rows[:, None] - columns[None, :] + mean
    squares = np.array(
        [
            b * (np.sum((rows - mean) ** 2) / (a - 1) + step**2),
            a * np.sum((columns - mean) ** 2) / (b - 1),
            np.sum(rest**2) / ((a - 1) * (b - 1)),
        ]
    )
    # A negative estimate of one effect must not shrink the other's.
    variance = max(squares[0] + squares[1] - squares[2], squares[0], squares[1])
    if variance == 0.0:
        return mean, mean
    freedoms = np.array([a - 1, b - 1, (a - 1) * (b - 1)])
    freedom = max(float(variance**2 / np.sum(squares**2 / freedoms)), 1.0)
    half = t_quantile(level, freedom) * math.sqrt(variance / (a * b))
    return mean - half, mean + half


def critical_difference(methods: int, blocks: int) -> float:
    """Return by how much two mean ranks must differ (Nemenyi's test; Demšar 2006, section 3.2.2).

    `methods` is the number of methods ranked in each of `blocks` blocks, such as scenarios.
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1.0 - ALPHA, methods, math.inf))
    return quantile * math.sqrt(methods * (methods + 1) / (12.0 * blocks))


def t_quantile(level: float, freedom: float) -> float:
    """Return the half-width of a two-sided t interval in standard errors."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1.0 + level) / 2))


def _finite(values: Sequence[float] | Floats) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise ValueError("values must be one or more finite numbers")
    return x
