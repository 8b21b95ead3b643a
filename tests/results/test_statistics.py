from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from clbench.results.statistics import (
    Comparison,
    Differences,
    compare,
    critical_difference,
    crossed_interval,
    seeds_needed,
    spend,
    spread_interval,
    summarise,
)


def one(values: list[float], step: float = 0.0, **options: Any) -> Comparison:
    """The comparison of a method that is alone in its family."""
    return compare({"p_o": {"ewc": Differences(tuple(values), step)}}, **options)["p_o", "ewc"]


def test_summary_of_three_values() -> None:
    summary = summarise([0.1, 0.2, 0.6])
    assert summary.n == 3
    assert summary.mean == pytest.approx(0.3)
    assert summary.median == pytest.approx(0.2)
    assert summary.deviation == pytest.approx(math.sqrt((0.04 + 0.01 + 0.09) / 2))
    assert (summary.minimum, summary.maximum) == (0.1, 0.6)
    theirs = stats.ttest_1samp([0.1, 0.2, 0.6], 0.0).confidence_interval()
    assert (summary.low, summary.high) == pytest.approx((theirs.low, theirs.high))


def test_one_or_two_seeds_have_no_interval() -> None:
    one = summarise([0.5])
    assert math.isnan(one.deviation)
    assert math.isnan(one.low)
    assert math.isnan(summarise([0.5, 0.6]).high)


def test_a_single_comparison_without_steps_is_the_paired_t_test() -> None:
    x = [0.03, 0.01, 0.05, 0.02]
    theirs = stats.ttest_1samp(x, 0.0)
    comparison = one(x)
    assert comparison.p == comparison.p_family == pytest.approx(theirs.pvalue)
    interval = theirs.confidence_interval()
    assert comparison.difference_low == pytest.approx(interval.low)
    assert comparison.difference_high == pytest.approx(interval.high)
    assert (comparison.pairs, comparison.freedom, comparison.level) == (4, 3, 0.95)


def test_seeds_that_differ_by_the_same_rows_are_no_certainty() -> None:
    same = one([0.002] * 3, step=0.002)
    assert same.spread == pytest.approx(0.002)
    assert same.p == pytest.approx(2 * stats.t.sf(math.sqrt(3), 2))
    assert same.verdict == "no difference shown"
    assert one([0.0] * 3, step=0.002).p == 1.0


@pytest.mark.parametrize(
    "values", [[0.0] * 3, [0.1] * 3, [0.1 + 0.2 - 0.3] * 3, [0.1, 0.3 - 0.2, 0.1]]
)
def test_equal_differences_without_a_known_step_get_no_verdict(values: list[float]) -> None:
    unknown = one(values)
    assert unknown.verdict == "no verdict"
    assert math.isnan(unknown.p)
    assert math.isnan(unknown.p_family)
    assert math.isnan(unknown.difference_low)
    assert one([0.1, 0.101, 0.099]).verdict == "better"


def test_a_method_is_judged_by_its_own_variance() -> None:
    quiet, loud = (0.01, 0.02, 0.03, 0.01, 0.03), (0.2, -0.1, 0.1, 0.0, 0.3)
    both = compare({"p_o": {"a": Differences(quiet, 0.002), "b": Differences(loud)}}, family=1)
    for name, values, step in (("a", quiet, 0.002), ("b", loud, 0.0)):
        found = both["p_o", name]
        assert found.spread == pytest.approx(math.hypot(np.std(values, ddof=1), step))
        assert found.freedom == 4
    theirs = stats.ttest_1samp(loud, 0.0)
    assert both["p_o", "b"].p == pytest.approx(theirs.pvalue)


def test_a_family_shares_one_error_rate_and_p_agrees_with_the_interval() -> None:
    rng = np.random.default_rng(0)
    verdicts = set()
    for shift in (0.0, 0.02, 0.05):
        groups = {
            score: {
                str(method): Differences(tuple(rng.normal(shift, 0.02, 5)), 0.002)
                for method in range(3)
            }
            for score in ("p_o", "p_s")
        }
        for comparison in compare(groups).values():
            assert comparison.level == pytest.approx(1 - 0.05 / 6)
            assert comparison.p_family == pytest.approx(min(1.0, 6 * comparison.p))
            outside = not comparison.difference_low <= 0.0 <= comparison.difference_high
            assert outside == (comparison.p_family < 0.05)
            assert outside == (comparison.verdict in ("better", "worse"))
            verdicts.add(comparison.verdict)
    assert {"better", "no difference shown"} <= verdicts


def test_verdicts() -> None:
    x = [0.1, 0.11, 0.12]
    assert one(x).verdict == "better"
    assert one(x, lower_is_better=["p_o"]).verdict == "worse"
    assert one([-value for value in x]).verdict == "worse"
    assert one([0.001, -0.001, 0.0, 0.001], margin=0.01).verdict == "equivalent"
    assert one([0.001, -0.001, 0.0, 0.001]).verdict == "no difference shown"
    assert one([0.1, 0.1]).verdict == "no verdict"
    single = one([0.1])
    assert math.isnan(single.p)
    assert math.isnan(single.difference_low)
    assert compare({"p_o": {"ewc": Differences(())}}) == {}


def test_looks_spend_the_error_rate() -> None:
    rates = spend((5, 10, 20))
    assert sum(rates) == pytest.approx(0.05)
    assert rates == pytest.approx([0.05 / 16, 0.05 * 3 / 16, 0.05 * 12 / 16])
    assert spend([7]) == pytest.approx([0.05])


def test_the_seeds_needed_give_the_power() -> None:
    spread, difference = 0.03, 0.02
    n = seeds_needed(spread, difference)
    assert n is not None

    def power(n: int) -> float:
        noncentrality = difference / spread * math.sqrt(n)
        return float(stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, noncentrality))

    assert power(n - 1) < 0.8 <= power(n)
    strict = seeds_needed(0.01, difference, alpha=0.001)
    assert strict is not None
    assert strict < n
    assert seeds_needed(1.0, 0.001) is seeds_needed(1.0, 0.0) is None
    assert seeds_needed(0.0, 0.1) == 3


def test_the_interval_of_a_spread() -> None:
    low, high = spread_interval(0.02, 4)
    assert low == pytest.approx(0.02 * math.sqrt(4 / stats.chi2.ppf(0.975, 4)))
    assert high == pytest.approx(0.02 * math.sqrt(4 / stats.chi2.ppf(0.025, 4)))


def test_crossed_interval_of_seeds_only_is_the_t_interval() -> None:
    rows = np.array([0.1, 0.2, 0.4])
    table = np.repeat(rows[:, None], 50, axis=1)
    theirs = stats.ttest_1samp(rows, 0.0).confidence_interval()
    assert crossed_interval(table) == pytest.approx((theirs.low, theirs.high))
    assert crossed_interval(table.T) == pytest.approx((theirs.low, theirs.high))
    assert all(math.isnan(x) for x in crossed_interval(table[:1]))
    assert crossed_interval(np.ones((3, 4))) == (1.0, 1.0)


def test_equal_seeds_do_not_count_as_certain() -> None:
    # deviation 0, step .01: half-width t(.975, 2) * .01 / sqrt(3), with t = 4.302653
    half = 4.302653 * 0.01 / math.sqrt(3)
    equal = summarise([0.5] * 3, 0.01)
    assert (equal.low, equal.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-7)
    assert equal.deviation == 0.0
    # every seed differs from the reference on all of four rows: only the step of .01 is left
    assert crossed_interval(np.ones((3, 4)), step=0.01) == pytest.approx((1 - half, 1 + half))
    # deviation .01 and step .01: sqrt(2) as wide
    spread = summarise([0.49, 0.5, 0.51], 0.01)
    assert spread.high - spread.mean == pytest.approx(math.sqrt(2) * half, abs=1e-7)


def test_crossed_interval_is_wider_than_that_of_seeds_alone() -> None:
    rng = np.random.default_rng(1)
    table = 0.01 * rng.normal(size=(5, 1)) + rng.choice([-1.0, 0.0, 1.0], (1, 200))
    low, high = crossed_interval(table)
    seeds = stats.ttest_1samp(table.mean(1), 0.0).confidence_interval()
    items = stats.ttest_1samp(table.mean(0), 0.0).confidence_interval()
    assert high - low > seeds.high - seeds.low
    assert high - low == pytest.approx(items.high - items.low, rel=0.02)


def test_critical_difference_of_nemenyi() -> None:
    # Demšar 2006, section 3.2.2: four classifiers on 14 data sets, q = 2.569 (table 5)
    assert critical_difference(4, 14) == pytest.approx(
        2.569 * math.sqrt(4 * 5 / (6 * 14)), rel=1e-3
    )


@pytest.mark.parametrize("values", [[], [[1.0]], [math.nan], [math.inf]])
def test_values_must_be_finite_numbers(values: list[Any]) -> None:
    with pytest.raises(ValueError, match="finite"):
        summarise(values)


def test_the_family_counts_only_comparisons_with_enough_seeds() -> None:
    few, enough = Differences((0.1, 0.2)), Differences((0.1, 0.2, 0.3))
    pair = compare({"p_o": {"few": few, "enough": enough}})
    assert pair["p_o", "enough"].level == pytest.approx(0.95)
    larger = compare({"p_o": {"enough": enough}}, family=4)
    assert larger["p_o", "enough"].level == pytest.approx(1 - 0.05 / 4)


def test_the_error_of_a_family_stays_below_five_percent() -> None:
    """Two methods and a reference with noise of one to three rows on 500, three seeds."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        noise = rng.integers(-3, 4, (3, 2, 3)) / 500
        groups = {
            score: {
                str(m): Differences(tuple(noise[m, score] - noise[2, score]), 1 / 500)
                for m in range(2)
            }
            for score in range(2)
        }
        verdicts = [comparison.verdict for comparison in compare(groups).values()]
        wrong += any(verdict in ("better", "worse") for verdict in verdicts)
    assert wrong / 400 < 0.05
