from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clbench.core.errors import DataError, SettingsError
from clbench.search import Trial, combine, read_log
from clbench.search.rates import SearchOrigin, SearchSpace


def trial(p: float, *rates: float) -> Trial:
    return Trial(rates, p_o=p / 2, p_s=p / 2)


def test_two_trials_are_averaged_geometrically_by_rank() -> None:
    # Weights 1 and 1/2: 1e-5 · 8^(1/3) = 2e-5, 4e-5 · (1/8)^(1/3) = 2e-5, 1e-5.
    pair = [trial(1.5, 8e-5, 5e-6, 1e-5), trial(1.6, 1e-5, 4e-5, 1e-5)]
    combination = combine([pair], b=2)
    assert combination.rates == pytest.approx([2e-5, 2e-5, 1e-5], rel=1e-12)


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


# Logs

RATES = [1e-7 * 2**n for n in range(10)]
ONE = [0.91, 0.86, 0.9, *RATES]


def line(*trials: list[float], end: str = "") -> str:
    return ",".join(repr(number) for trial in trials for number in trial) + end


@pytest.mark.parametrize("end", ["", ",\n", " , \n\n"])
def test_log_holds_scores_and_rates_of_each_trial(tmp_path: Path, end: str) -> None:
    path = tmp_path / "sst2-mrpc.txt"
    path.write_text(line(ONE, [0.5, 0.6, 0.7, *RATES[::-1]], end=end))
    first, second = read_log(path)
    assert (first.p_o_before, first.p_s, first.p_o) == (0.91, 0.86, 0.9)
    assert first.p == pytest.approx(1.76)
    assert first.rates == tuple(RATES)
    assert second.rates == tuple(RATES[::-1])


def test_trials_may_be_on_separate_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(line(ONE) + "\n" + line(ONE, ONE, end=",") + "\n")
    assert len(read_log(path)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "is empty. A trial log has 13 numbers for each trial."),
        (line(ONE, ONE[:4]), "line 1: has 17 numbers, which is not a multiple of 13"),
        (line(ONE).replace("0.86", "good"), "line 1, trial 1: could not convert"),
        (line(ONE, ONE).replace("0.9,", ",", 1), "line 1, trial 1: could not convert"),
        (
            line(ONE) + "," + line([0.9, 0.8, 0.7, *RATES[:-1], float("nan")]),
            "trial 2: rate 10 is nan: must be above 0, and at most 1.",
        ),
        (line([91.0, 86.0, 90.0, *RATES]), "p_o_before is 91: must be a fraction"),
    ],
)
def test_error_in_log_names_line_and_trial(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_log(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_unreadable_log_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as a trial log: No such file"):
        read_log(tmp_path / "nowhere.txt")
    (tmp_path / "binary").write_bytes(b"0.9,\xff\xfe")
    with pytest.raises(DataError, match="it is not a text file"):
        read_log(tmp_path / "binary")


# The search space


def test_groups_are_named_from_embeddings_to_head() -> None:
    names = SearchOrigin(depth=3).group_names(5)
    assert names == ["embeddings", "layer 0", "layer 1", "layer 2", "head"]
    assert SearchOrigin(depth=12).group_names(10)[1:3] == ["layers 0, 1", "layer 2"]


def test_rates_survive_conversion_to_a_point() -> None:
    space = SearchSpace(SearchOrigin(2e-5, 12), 4)
    rates = [1e-7, 1e-5, 3e-4, 1e-3]
    assert space.rates(space.point(rates)) == rates
    assert space.flat == [2e-5] * 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"groups": 2}, "groups=2: must be from 3 to 14"),
        ({"groups": 15}, "the model has 12 layers"),
        ({"lowest": 1e-3, "highest": 1e-7}, "lowest the smaller one"),
        ({"highest": 2.0}, "at most 1"),
        ({"lowest": 1e-4}, "flat rate 2e-05 of the first trial lies outside"),
    ],
)
def test_wrong_space_is_an_error(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        SearchSpace(SearchOrigin(2e-5, 12), **{"groups": 10, **changes})
