from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from clbench.results.statistics import (
    DRAWS,
    bootstrap,
    compare,
    holm,
    sign_flips,
    summarise,
)


def test_summary_of_three_values() -> None:
    summary = summarise([0.1, 0.2, 0.6])
    assert summary.n == 3
    assert summary.mean == pytest.approx(0.3)
    assert summary.median == pytest.approx(0.2)
    assert summary.deviation == pytest.approx(math.sqrt((0.04 + 0.01 + 0.09) / 2))
    assert (summary.minimum, summary.maximum) == (0.1, 0.6)
    assert summary.low < 0.3 < summary.high


def test_one_or_two_seeds_have_no_interval() -> None:
    one = summarise([0.5])
    assert math.isnan(one.deviation)
    assert math.isnan(one.low)
    assert math.isnan(summarise([0.5, 0.6]).high)


def test_bootstrap_approximates_all_resamples() -> None:
    values = [0.0, 1.0, 5.0, 7.0]
    means = [np.mean(pick) for pick in itertools.product(values, repeat=4)]
    exact = np.quantile(means, [0.025, 0.975])
    low, high = bootstrap(values)
    assert low == pytest.approx(exact[0], abs=0.26)  # steps of the 256 means lie 0.25 apart
    assert high == pytest.approx(exact[1], abs=0.26)
    assert bootstrap(values) == (low, high)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0], 1.0),
        ([1.0, 2.0, 3.0], 0.25),  # of 8 flips only the observed and its mirror
        ([1.0, 1.0, -1.0], 1.0),  # 6 of 8 sum to 1 or -1, the others to 3 or -3
        ([0.0, 0.0, 0.0], 1.0),
        ([0.1, 0.2, 0.3, 0.4, 0.5], 0.0625),
        ([-0.1, 0.2, 0.3, 0.4, 0.5], 0.125),  # as far off: all plus, this one, and mirrors
    ],
)
def test_sign_flips_count_the_flips_that_are_as_extreme(differences: list[float], p: float) -> None:
    assert sign_flips(differences) == pytest.approx(p)


def test_sign_flips_agree_with_scipy() -> None:
    rng = np.random.default_rng(0)
    differences = rng.normal(0.3, 1.0, 9)
    theirs = stats.permutation_test(
        (differences, np.zeros(9)), lambda a, b: np.mean(a - b), permutation_type="samples",
        n_resamples=np.inf,
    )  # fmt: skip
    assert sign_flips(differences) == pytest.approx(theirs.pvalue)


def test_drawn_flips_approximate_exact_ones_and_never_give_0() -> None:
    rng = np.random.default_rng(1)
    many = rng.normal(0.3, 1.0, 18)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=18)))
    exact = (np.abs(signs @ many) >= abs(many.sum()) - 1e-9).mean()
    assert sign_flips(many) == pytest.approx(exact, abs=0.01)
    assert sign_flips([1.0] * 40) == pytest.approx(1 / (DRAWS + 1))


def test_holm_corrects_step_by_step() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06}
    )
    assert holm({"a": 0.7, "b": 0.6}) == {"a": 1.0, "b": 1.0}
    assert list(holm({"z": 0.5, "a": 0.1})) == ["z", "a"]
    assert holm({}) == {}


def test_the_interval_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.normal(0.5, 0.1, 6), rng.normal(0.4, 0.1, 6)
    comparison = compare(dict(enumerate(first)), dict(enumerate(second)))
    theirs = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (comparison.difference_low, comparison.difference_high) == pytest.approx(
        (theirs.low, theirs.high)
    )
    assert comparison.difference == pytest.approx((first - second).mean())
    assert comparison.pairs == 6


def test_differences_are_taken_by_seed() -> None:
    """The spread between seeds is large, that of the differences small."""
    other = {0: 0.2, 1: 0.5, 2: 0.9, 7: 0.1}
    method = {2: 0.93, 0: 0.22, 1: 0.53, 9: 0.0}
    comparison = compare(method, other)
    assert comparison.pairs == 3  # seeds that only one has are left out
    assert comparison.difference == pytest.approx((0.03 + 0.02 + 0.03) / 3)
    assert comparison.verdict == "better"
    assert compare(method, other, higher_is_better=False).verdict == "worse"
    assert compare(other, method).verdict == "worse"


def test_no_verdict_from_two_seeds_or_an_interval_around_0() -> None:
    two = compare({0: 0.9, 1: 0.9}, {0: 0.1, 1: 0.1})
    assert two.verdict == "no verdict"
    assert two.seeds_needed is None
    three = compare({0: 0.3, 1: 0.1, 2: 0.2}, {0: 0.1, 1: 0.2, 2: 0.1})
    assert three.difference_low < 0.0 < three.difference_high
    assert three.verdict == "no difference shown"
    n = three.seeds_needed
    assert n is not None

    def half(n: int) -> float:
        deviation = np.std([0.2, -0.1, 0.1], ddof=1)
        return float(stats.t.ppf(0.975, n - 1) * deviation / np.sqrt(n))

    assert half(n) < three.difference <= half(n - 1)
    same = compare({0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.1, 1: 0.2, 2: 0.3})
    assert same.verdict == "no difference shown"
    assert same.seeds_needed is None


def test_three_seeds_that_agree_are_not_enough_by_themselves() -> None:
    """One triple in four agrees in sign by chance; a bootstrap interval would always say so."""
    differences = {0: 0.01, 1: 0.10, 2: 0.20}
    comparison = compare(differences, dict.fromkeys(differences, 0.0))
    assert bootstrap(list(differences.values()))[0] > 0.0
    assert comparison.verdict == "no difference shown"


def test_verdicts_are_wrong_at_the_stated_rate() -> None:
    rng = np.random.default_rng(3)
    for n in (3, 5):
        draws = rng.normal(0.0, 1.0, (600, n))
        wrong = 0
        for row in draws:
            comparison = compare(dict(enumerate(row)), dict.fromkeys(range(n), 0.0))
            wrong += comparison.verdict in ("better", "worse")
        assert wrong / len(draws) == pytest.approx(0.05, abs=0.025)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_values_that_are_not_finite_raise(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        summarise(values)


def test_no_seed_in_common_raises() -> None:
    with pytest.raises(ValueError, match="one or more"):
        compare({0: 1.0}, {1: 1.0})
