"""What methods lose where plain fine-tuning learned as much."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tools.equal_learning import (
    OUTSIDE,
    at_equal_learning,
    changed_verdicts,
    complete,
    shown_on_curve,
)

CURVE = ["slow", "middle", "fast"]
NOISE = [0.003, 0.01, -0.009, -0.004]


def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what three settings and two methods learned and lost on four seeds.

    The settings lose what they learn; `ours` loses .1 less than that, `most` learns more than all.
    """
    learned = pd.DataFrame(
        {"slow": [0.2], "middle": [0.5], "fast": [0.8], "ours": [0.6], "most": [0.9]}
    )
    learned = pd.concat([learned + seed * 0.01 for seed in range(4)], ignore_index=True)
    lost = learned.copy()
    lost["ours"] = learned["ours"].mean() - 0.1 + NOISE
    return learned, lost


def test_a_method_is_compared_where_the_curve_learned_as_much() -> None:
    learned, lost = frames()
    found = at_equal_learning(learned, {"loss": (lost, 0.0)}, CURVE, ["ours"])
    assert set(found) == {("loss", "ours")}
    answer = found["loss", "ours"]
    assert not isinstance(answer, int)
    assert answer.difference == pytest.approx(0.1)
    assert answer.pairs == 4
    assert answer.verdict == "better"


def test_the_spread_of_what_was_learned_widens_the_interval() -> None:
    """On one curve with a slope of 1, noise in learning must not look like a difference."""
    rng, seeds, false = np.random.default_rng(0), 10, 0
    middles = {"a": 0.25, "b": 0.45, "c": 0.65, "d": 0.85, "ours": 0.55}
    for _ in range(200):
        learned, lost = (
            pd.DataFrame({name: x + rng.normal(0.0, sd, seeds) for name, x in middles.items()})
            for sd in (0.05, 0.04)
        )
        (found,) = at_equal_learning(learned, {"l": (lost, 0.0)}, [*"abcd"], ["ours"]).values()
        false += not isinstance(found, int) and found.verdict in ("better", "worse")
    assert false <= 0.05 * 200 + 3 * (0.05 * 0.95 * 200) ** 0.5  # three standard errors more
    assert false < 20  # without the spread: 24


def test_a_curve_is_not_read_beyond_its_ends() -> None:
    learned, lost = frames()
    found = at_equal_learning(learned, {"loss": (lost, 0.0)}, CURVE, ["ours", "most"])
    assert found["loss", "most"] == 4
    assert shown_on_curve(found["loss", "most"]) == "outside the curve on 4 seeds"


def test_a_curve_of_two_settings_is_not_read() -> None:
    learned, lost = frames()
    found = at_equal_learning(learned, {"loss": (lost, 0.0)}, ["slow", "fast"], ["ours"])
    assert found["loss", "ours"] == 0
    assert shown_on_curve(found["loss", "ours"]) == "too few settings that learn differently"


def test_intervals_of_all_scores_hold_jointly() -> None:
    learned, lost = frames()
    alone = at_equal_learning(learned, {"loss": (lost, 0.0)}, CURVE, ["ours"])["loss", "ours"]
    both = {"loss": (lost, 0.0), "topics": (lost, 0.0)}
    one_of_two = at_equal_learning(learned, both, CURVE, ["ours"])["loss", "ours"]
    assert not isinstance(alone, int)
    assert not isinstance(one_of_two, int)
    assert one_of_two.difference_low < alone.difference_low < alone.difference < 0.15


def test_only_seeds_with_all_baselines_are_complete() -> None:
    rows = [("vanilla", 0), ("ours", 0), ("vanilla", 1)]
    frame = pd.DataFrame(rows, columns=["baseline", "seed"])
    assert [*complete(frame)["seed"]] == [0, 0]
    assert complete(frame[1:]).empty  # each seed lacks another baseline


def test_verdicts_that_another_curve_changes() -> None:
    learned, lost = frames()
    names = ["ours", "most"]
    before = at_equal_learning(learned, {"loss": (lost, 0.0)}, CURVE, names)
    learned["faster"], lost["faster"] = learned["fast"] + 0.2, lost["fast"] + 0.2
    after = at_equal_learning(learned, {"loss": (lost, 0.0)}, [*CURVE, "faster"], names)
    changed = changed_verdicts(before, after)
    assert {*changed} == {("loss", "most")}  # `ours` is better on both curves
    assert changed["loss", "most"][0] == OUTSIDE
    assert changed_verdicts(after, after) == {}
