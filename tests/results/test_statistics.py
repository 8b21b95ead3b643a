from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from clbench.results.power import seeds_needed
from clbench.results.statistics import (
    Comparison,
    Differences,
    collapse_p,
    compare,
    critical_difference,
    crossed_interval,
    modes,
    spend,
    summarise,
    unseen,
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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.80, 0.55, 0.81], (0.25, 1)),
        ([0.81, 0.55, 0.56, 0.80], (0.24, 2)),
        ([0.80, 0.705, 0.81], (math.inf, 0)),  # less than a tenth
        ([0.80, 0.69, 0.57], (0.12, 1)),  # the lower of two gaps is .11
        ([0.81, 0.69, 0.68, 0.55, 0.56], (math.inf, 0)),  # the upper side is wider than the gap
        ([0.80, 0.55], (math.inf, 0)),
    ],
)
def test_two_modes_lie_a_gap_apart(values: list[float], expected: tuple[float, int]) -> None:
    assert modes(values, 1 / 1000) == pytest.approx(expected)
    assert modes(values, 0.0) == (math.inf, 0)


def test_the_gap_of_few_rows_is_noise() -> None:
    # 50 rows: a difference between samples has a standard error of .1 at most
    assert modes([0.80, 0.55, 0.81], 1 / 50) == (math.inf, 0)
    assert modes([0.80, 0.45, 0.81], 1 / 50)[1] == 1


def test_the_p_of_identical_methods_that_collapse() -> None:
    # differences of -1, 0 and 1 with probabilities 1/4, 1/2 and 1/4
    assert collapse_p(3, 1e6) == pytest.approx(2 / 4**3)
    assert collapse_p(5, 1e3) == pytest.approx(2 / 4**5)
    # four of five seeds: mean .8, variance .2, t = .8 / sqrt(.2 / 5) = 4
    assert collapse_p(5, 4.0) == pytest.approx(2 / 4**5 + 2 * 5 / 4**4 / 2)
    assert collapse_p(5, 4.01) == pytest.approx(2 / 4**5)
    # four seeds sum to 0 if none, one or two of them each go up and down: 6 + 12 · 4 + 16 of 256
    assert collapse_p(4, 0.0) == pytest.approx(1 - (16 + 48 + 6) / 256)


def test_how_likely_collapses_show_no_modes() -> None:
    # two methods, three seeds, rate 1/2: both uniform (1/4 each), and not the same (half of these)
    assert unseen(2, 3) == pytest.approx(1 / 32)
    assert unseen(3, 3) == pytest.approx((1 / 4) ** 3 - 2 / 8**3)
    assert unseen(1, 3) == pytest.approx(0.0)


def test_verdicts_are_withheld_where_runs_collapse() -> None:
    step = 1 / 400
    all_lost, steady = (-0.25, -0.252, -0.248), (-0.02, -0.021, -0.0195)
    some_lost = (-0.25, 0.002, -0.001)
    few = compare(
        {"p_o": {"ewc": Differences(all_lost, step), "mas": Differences(some_lost, step)}}
    )["p_o", "ewc"]
    assert few.verdict == "no verdict"
    assert math.isnan(few.p)
    assert math.isnan(few.difference_low)
    assert "takes 4 seeds or more" in few.why  # 2 / 4^4 < .05 / 2 <= 2 / 4^3
    # no other run collapses: the difference is an effect
    pair = {"ewc": Differences(all_lost, step), "mas": Differences(steady, step)}
    assert compare({"p_o": pair})["p_o", "ewc"].verdict == "worse"
    # a difference of less than half of a collapse is none
    small = {"ewc": Differences(steady, 1e-4), "mas": Differences(some_lost, 1e-4)}
    assert compare({"p_o": small})["p_o", "ewc"].verdict == "worse"
    # four seeds are enough for two comparisons
    four = {
        "ewc": Differences((*all_lost, -0.25), step),
        "mas": Differences((*some_lost, 0.0), step),
    }
    assert compare({"p_o": four})["p_o", "ewc"].verdict == "worse"


@pytest.mark.parametrize("error", [0.0, 1e-4, 0.02])
def test_an_error_beside_that_of_seeds_does_not_change_which_runs_collapse(error: float) -> None:
    values = {"ewc": (-0.25, -0.252, -0.248), "mas": (-0.25, 0.002, -0.001)}
    known = {name: Differences(some, 1 / 400, error) for name, some in values.items()}
    assert "runs collapse" in compare({"p_o": known})["p_o", "ewc"].why
    unknown = {name: Differences(some, 0.0, error) for name, some in values.items()}
    found = compare({"loss": unknown}, family=1)["loss", "ewc"]
    assert found.verdict == "worse"
    assert found.spread == pytest.approx(math.hypot(0.002, math.sqrt(3) * error))
    half = found.difference_high - found.difference
    assert half == pytest.approx(4.302653 * math.hypot(0.002 / math.sqrt(3), error))
    alone = summarise(list(values["ewc"]), 0.0, error)
    assert alone.high - alone.mean == pytest.approx(half)


def test_collapses_of_other_groups_count_where_few_methods_hide_them() -> None:
    all_lost, some_lost = (-0.25, -0.252, -0.248), (-0.25, 0.002, -0.001)
    groups = {"a": {"ewc": Differences(all_lost, 1 / 400)}}
    groups["b"] = {"ewc": Differences(some_lost, 1 / 400)}
    assert compare(groups)["a", "ewc"].verdict == "no verdict"  # 2 · 1/32 > .05
    more = {f"m{k}": Differences((0.0, 0.001, -0.001), 1 / 400) for k in range(4)}
    groups["a"] |= more
    assert compare(groups, family=2)["a", "ewc"].verdict == "worse"


def test_collapses_leave_the_error_of_a_family_below_six_percent() -> None:
    """Two methods and a reference on two scores; half of the runs lose 100 of 400 rows."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(500):
        rows = np.round(2 * rng.standard_normal((3, 2, 3)) - 100 * (rng.random((3, 2, 3)) < 0.5))
        groups = {
            score: {
                str(m): Differences(tuple((rows[m, score] - rows[2, score]) / 400), 1 / 400)
                for m in range(2)
            }
            for score in range(2)
        }
        verdicts = [comparison.verdict for comparison in compare(groups).values()]
        wrong += any(verdict in ("better", "worse") for verdict in verdicts)
    assert wrong / 500 < 0.06  # .11 before
