"""What methods lose where plain fine-tuning learned as much."""

from __future__ import annotations

import pandas as pd
import pytest

from tools.equal_learning import at_equal_learning, complete, shown_on_curve

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


def test_a_curve_is_not_read_beyond_its_ends() -> None:
    learned, lost = frames()
    found = at_equal_learning(learned, {"loss": (lost, 0.0)}, CURVE, ["ours", "most"])
    assert found["loss", "most"] == 4
    assert shown_on_curve(found["loss", "most"]) == "not on the curve of 4 seeds"


def test_a_curve_of_two_settings_is_not_read() -> None:
    learned, lost = frames()
    found = at_equal_learning(learned, {"loss": (lost, 0.0)}, ["slow", "fast"], ["ours"])
    assert found["loss", "ours"] == 0
    assert shown_on_curve(found["loss", "ours"]) == "too few settings on the curve"


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
