"""Flips that guessing explains, and models that only guess."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from clbench.audit.chance import beyond_chance, p_above
from clbench.audit.comparison import compare
from clbench.audit.scores import ItemScores, Paired


def table(both: int, lost: int, gained: int, none: int) -> Paired:
    cells = np.repeat([[1, 1], [1, 0], [0, 1], [0, 0]], [both, lost, gained, none], axis=0)
    return Paired((), cells[:, 0].astype(float), cells[:, 1].astype(float))


def test_chance_flips_are_those_by_hand() -> None:
    # Accuracies .6 and .5 of four answers: .4 * .5 / 3 of the items flip either way by chance.
    lost, gained = beyond_chance(table(40, 20, 10, 30), 4)
    assert lost.value == pytest.approx(0.2 - 0.4 * 0.5 / 3)
    assert gained.value == pytest.approx(0.1 - 0.4 * 0.5 / 3)
    # The difference of the two is that of the accuracies, whatever is subtracted.
    assert lost.value - gained.value == pytest.approx(0.6 - 0.5)
    # Of two answers, more is chance than was seen.
    assert [each.value for each in beyond_chance(table(40, 20, 10, 30), 2)] == [0.0, 0.0]


def test_what_guesses_lose_is_nothing() -> None:
    """Two models that guess among four answers, in the numbers that are expected."""
    for each in beyond_chance(table(100, 300, 300, 900), 4):
        assert each.value == pytest.approx(0.0, abs=1e-12)
        assert each.low == 0.0
        assert 0.0 < each.high < 0.04


@pytest.mark.parametrize(("choices", "known", "forgotten"), [(2, 0.9, 0.1), (4, 0.5, 0.3)])
def test_intervals_hold_what_was_forgotten(choices: int, known: float, forgotten: float) -> None:
    """A model forgets a share of what the other knows; both guess at what they do not know."""
    rng, n, draws, covered = np.random.default_rng(0), 200, 500, 0
    unknown = 1.0 - known, 1.0 - known + forgotten
    wrong = [share * (1 - 1 / choices) for share in unknown]
    guess = (choices - 1) / choices**2
    truth = forgotten * (1 - 1 / choices) + unknown[0] * guess - wrong[0] * wrong[1] / (choices - 1)
    for _ in range(draws):
        luck = rng.random((2, n)) < 1 / choices
        item = rng.random(n)
        base, tuned = (item < known) | luck[0], (item < known - forgotten) | luck[1]
        lost, _ = beyond_chance(Paired((), base.astype(float), tuned.astype(float)), choices)
        covered += lost.low <= truth <= lost.high
    assert covered / draws > 0.95 - 3 * math.sqrt(0.05 * 0.95 / draws)


def test_a_model_is_above_chance_by_an_exact_test() -> None:
    scores = np.repeat([1.0, 0.0], [60, 40])
    expected = stats.binomtest(60, 100, 0.5, alternative="greater").pvalue
    assert p_above(scores, 0.5) == pytest.approx(expected, rel=1e-9)
    assert p_above(np.zeros(100), 0.5) == p_above(np.zeros(100), 0.0) == 1.0
    graded = np.linspace(0.2, 0.9, 50)
    expected = stats.ttest_1samp(graded, 0.5, alternative="greater").pvalue
    assert p_above(graded, 0.5) == pytest.approx(expected, rel=1e-9)


def test_a_task_that_the_base_model_guesses_cannot_show_forgetting() -> None:
    keys = tuple(map(str, range(200)))

    def scores(task: str, right: int) -> ItemScores:
        hits = np.repeat([1.0, 0.0], [right, 200 - right])
        return ItemScores(task, "knowledge", hits, keys, chance=0.5, choices=2)

    def judged(*right: int) -> list[bool]:
        both = [scores(str(i), each) for i, each in enumerate(right)]
        return [each.cannot_show_forgetting for each in compare(both, both, 0.02).changes]

    # One-sided p of 113 of 200 is .038: above chance as the one task, not as one of two.
    assert judged(113) == [False]
    assert judged(113, 190) == [True, False]
    change = compare([scores("a", 100)], [scores("a", 90)], 0.02).changes[0]
    assert "10 lost and 0 gained of 200 items (beyond chance: 0 and 0)" in str(change)
    assert str(change).endswith(
        "cannot show forgetting: the base model is not shown to be above chance"
    )
    values = change.to_json()
    assert values["cannot_show_forgetting"]
    assert values["choices"] == 2
    assert values["lost_beyond_chance"]["value"] == 0.0
    # What is not right or wrong of k answers has no flips by chance.
    open_ended = ItemScores("b", "arithmetic", np.ones(200), keys)
    change = compare([open_ended], [open_ended], 0.02).changes[0]
    assert change.beyond_chance is None
    assert change.to_json()["lost_beyond_chance"] is None
