from __future__ import annotations

import pytest

from clbench.results.scores import scores_of


def test_pair_by_hand() -> None:
    scores = scores_of([[0.9, None], [0.7, 0.8]])
    assert scores["p_o_before"] == 0.9
    assert scores["p_o"] == 0.7
    assert scores["p_s"] == 0.8
    assert scores["p"] == pytest.approx(1.5)
    assert scores["forgetting"] == pytest.approx(0.2)
    assert scores["mean_forgetting"] == pytest.approx(0.2)
    assert scores["bwt"] == pytest.approx(-0.2)
    assert scores["average"] == pytest.approx(0.75)


def test_three_tasks_by_hand() -> None:
    matrix = [[0.8, None, None], [0.9, 0.6, None], [0.5, 0.7, 0.4]]
    scores = scores_of(matrix)
    # First task: 0.8 after its own stage, 0.5 at the end; its best before the end was 0.9.
    assert scores["forgetting"] == pytest.approx(0.3)
    assert scores["mean_forgetting"] == pytest.approx(((0.9 - 0.5) + (0.6 - 0.7)) / 2)
    assert scores["bwt"] == pytest.approx(((0.5 - 0.8) + (0.7 - 0.6)) / 2)
    assert scores["average"] == pytest.approx(1.6 / 3)
    assert scores["p_s"] == 0.4


def test_what_gets_better_is_negative_forgetting() -> None:
    assert scores_of([[0.5, None], [0.6, 0.9]])["forgetting"] == pytest.approx(-0.1)


def test_entries_above_the_diagonal_do_not_count() -> None:
    assert scores_of([[0.9, 0.1], [0.7, 0.8]]) == scores_of([[0.9, None], [0.7, 0.8]])


def test_single_task() -> None:
    scores = scores_of([[0.9]])
    assert (scores["p_s"], scores["average"]) == (0.9, 0.9)
    assert scores["p_o"] is None
    assert scores["forgetting"] is None


@pytest.mark.parametrize(
    "matrix", [[], [[0.5, None]], [[0.5, None], [0.5, None]], [[0.5], [0.5, 0.5]]]
)
def test_incomplete_matrices_are_refused(matrix: list[list[float | None]]) -> None:
    with pytest.raises(ValueError, match="score matrix"):
        scores_of(matrix)
