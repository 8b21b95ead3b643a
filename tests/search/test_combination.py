from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clbench.search import Trial, combine


def trial(p: float, *rates: float) -> Trial:
    return Trial(rates, p_o=p / 2, p_s=p / 2)


def test_two_trials_are_averaged_geometrically_by_rank() -> None:
    # Weights 1 and 1/2: 1e-5 · 8^(1/3) = 2e-5, 4e-5 · (1/8)^(1/3) = 2e-5, 1e-5.
    pair = [trial(1.5, 8e-5, 5e-6, 1e-5), trial(1.6, 1e-5, 4e-5, 1e-5)]
    combination = combine([pair], b=2)
    assert combination.rates == pytest.approx([2e-5, 2e-5, 1e-5], rel=1e-12)
    assert combination.best == (pair[1],)


def test_third_rank_has_weight_of_base_squared() -> None:
    # Weights 1, 1/1.8, 1/1.8²: the exponents of 10 average to (2 + 4/1.8 + 6/3.24) / sum.
    pair = [
        trial(1.2, 1e-6, 1e-6, 1e-6),
        trial(1.9, 1e-2, 1e-2, 1e-2),
        trial(1.4, 1e-4, 1e-4, 1e-4),
    ]
    exponent = -(2 + 4 / 1.8 + 6 / 3.24) / (1 + 1 / 1.8 + 1 / 3.24)
    assert combine([pair]).rates == pytest.approx([10**exponent] * 3, rel=1e-12)


def test_pairs_count_alike_whatever_their_number_of_trials() -> None:
    many = [trial(1.0, 2e-5, 1e-5, 1e-5)] * 30
    combination = combine([many, [trial(0.2, 8e-5, 1e-5, 4e-5)]])
    assert combination.within[0] == pytest.approx([2e-5, 1e-5, 1e-5])
    assert combination.rates == pytest.approx([4e-5, 1e-5, 2e-5])


def test_earlier_of_equal_trials_ranks_first() -> None:
    pair = [trial(1.5, 1e-5, 1e-5, 1e-5), trial(1.5, 8e-5, 8e-5, 8e-5)]
    assert combine([pair], b=2).rates == pytest.approx([2e-5] * 3)
    assert combine([pair[::-1]], b=2).rates == pytest.approx([4e-5] * 3)


def test_large_base_selects_best_trial_and_one_weights_all_alike() -> None:
    pair = [trial(1.5, 1e-5, 1e-5, 1e-5), trial(1.6, 4e-5, 1e-5, 1e-5)]
    assert combine([pair], b=1e9).rates[0] == pytest.approx(4e-5)
    assert combine([pair], b=1).rates[0] == pytest.approx(2e-5)


@given(
    st.lists(
        st.tuples(st.floats(-1, 1), st.lists(st.floats(1e-9, 1e-1), min_size=4, max_size=4)),
        min_size=1,
        max_size=50,
    ),
    st.floats(1, 100),
)
def test_mean_lies_between_its_rates(trials: list[tuple[float, list[float]]], b: float) -> None:
    pair = [Trial(tuple(rates), p_o=score, p_s=score) for score, rates in trials]
    for rate, column in zip(
        combine([pair], b).rates, zip(*(t.rates for t in pair), strict=True), strict=True
    ):
        assert min(column) * (1 - 1e-9) <= rate <= max(column) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("pairs", "b", "text"),
    [
        ([], 1.8, "at least one pair"),
        ([[]], 1.8, "at least one trial"),
        ([[trial(1, 1e-5, 1e-5, 1e-5)]], 0.9, "b is 0.9: must be a finite number, 1 or more"),
        ([[trial(1, 1e-5, 1e-5, 1e-5)]], math.nan, "b is nan"),
        ([[trial(1, *[1e-5] * 3), trial(1, *[1e-5] * 4)]], 1.8, "trials have 3 and 4 rates"),
    ],
)
def test_wrong_input_is_named(pairs: list[list[Trial]], b: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        combine(pairs, b)
