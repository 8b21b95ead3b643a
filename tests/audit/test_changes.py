"""Tests, intervals and words of changes between two models, against scipy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from clbench.audit.changes import Flips, Sample, holm, judge, mean_change, tango


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (7, 2), (2, 7), (30, 30), (0, 12)])
def test_p_is_that_of_the_exact_mcnemar_test(lost: int, gained: int) -> None:
    statsmodels = pytest.importorskip("statsmodels.stats.contingency_tables")
    table = [[100, lost], [gained, 50]]
    p = Flips(lost, gained, 150 + lost + gained).p
    assert p == pytest.approx(statsmodels.mcnemar(table, exact=True).pvalue, abs=1e-12)
    if lost + gained:
        assert p == pytest.approx(stats.binomtest(lost, lost + gained).pvalue, abs=1e-12)


def test_flips_are_counted_item_by_item() -> None:
    base = np.array([True, True, False, False, True])
    tuned = np.array([True, False, True, False, False])
    assert Flips.of(base, tuned) == Flips(lost=2, gained=1, n=5)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(("gained", "lost", "n"), [(3, 11, 60), (0, 4, 40), (9, 9, 500), (5, 0, 9)])
def test_the_score_interval_holds_the_values_that_a_test_does_not_reject(
    gained: int, lost: int, n: int, level: float
) -> None:
    """Search a grid with the variance found by maximising the likelihood numerically."""
    quantile = stats.norm.ppf((1 + level) / 2)

    def statistic(delta: float) -> float:
        shares = np.linspace(max(0, -delta), (1 - delta) / 2, 200_001)[1:-1]  # of lost items
        with np.errstate(divide="ignore", invalid="ignore"):
            fit = stats_log(gained, shares + delta) + stats_log(lost, shares)
            fit = fit + stats_log(n - gained - lost, 1 - 2 * shares - delta)
        share = shares[np.nanargmax(fit)]
        return float((gained - lost - n * delta) / math.sqrt(n * (2 * share + delta - delta**2)))

    low, high = tango(gained, lost, n, level)
    for bound, sign in ((low, 1), (high, -1)):
        assert statistic(bound) == pytest.approx(sign * quantile, abs=2e-3)
    assert low < (gained - lost) / n < high


def stats_log(count: int, share: np.ndarray) -> np.ndarray:
    return count * np.log(share) if count else np.zeros_like(share)


def test_without_flips_the_interval_says_how_many_may_have_been_missed() -> None:
    low, high = Flips(0, 0, 500).interval(0.95)
    z2 = stats.norm.ppf(0.975) ** 2
    assert high == pytest.approx(z2 / (500 + z2), rel=1e-6)
    assert low == pytest.approx(-high, rel=1e-6)


@pytest.mark.parametrize("n", [30, 400])
def test_the_interval_excludes_zero_exactly_where_the_test_rejects(n: int) -> None:
    for lost in range(20):
        for gained in range(10):
            flips = Flips(lost, gained, n)
            low, high = flips.interval(0.95)
            assert (flips.p < 0.05) == (low > 0 or high < 0), flips


def test_the_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    for lost, gained in ((0.02, 0.02), (0.1, 0.03), (0.3, 0.25)):
        misses = 0
        for b, c, _ in rng.multinomial(200, [lost, gained, 1 - lost - gained], size=600):
            low, high = Flips(int(b), int(c), 200).interval(0.95)
            misses += not low <= gained - lost <= high
        assert misses / 600 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_a_mean_change_is_a_paired_t_test() -> None:
    rng = np.random.default_rng(1)
    base, tuned = rng.normal(size=40), rng.normal(0.3, size=40)
    sample, found = mean_change(base, tuned), stats.ttest_rel(tuned, base)
    assert sample.difference == pytest.approx((tuned - base).mean())
    assert sample.p == pytest.approx(found.pvalue)
    assert sample.interval(0.9) == pytest.approx(tuple(found.confidence_interval(0.9)))
    same = mean_change(base, base)
    assert (same.difference, same.p, same.interval(0.95)) == (0.0, 1.0, (0.0, 0.0))


def test_holm_corrects_step_by_step() -> None:
    corrected, rates = holm([0.04, 0.001, 0.02, 0.5])
    assert corrected == pytest.approx([0.08, 0.004, 0.06, 0.5])  # 2 × .04, 4 × .001, 3 × .02
    assert rates == pytest.approx([0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3])
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.random.default_rng(2).random(9) ** 3
    assert holm(p.tolist())[0] == pytest.approx(multitest.multipletests(p, method="holm")[1])


def test_words_follow_the_interval() -> None:
    def sample(low: float, high: float) -> Sample:
        return Sample((low + high) / 2, 0.01, lambda level: (low, high))

    samples = {
        "forgot": sample(-0.09, -0.01),
        "gained": sample(0.01, 0.09),
        "kept": sample(-0.019, 0.01),
        "unclear": sample(-0.03, 0.01),
    }
    changes = judge(samples, 0.02)
    assert {name: change.word for name, change in changes.items()} == {n: n for n in samples}
