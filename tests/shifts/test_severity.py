from __future__ import annotations

import numpy as np
import pytest
from fake_context import FakeContext, make_task, text

from clbench.shifts.scenario import MOST_ROWS, separability, severities


def cloud(mean: float, count: int, seed: int, width: int = 8) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, width))
    points[:, 0] += mean
    return points.astype(np.float32)


def test_distant_sets_have_one_and_equal_sets_a_half() -> None:
    assert separability(cloud(0, 200, 0), cloud(20, 200, 1), 0) == 1.0
    assert separability(cloud(0, 500, 0), cloud(0, 500, 1), 0) == pytest.approx(0.5, abs=0.06)


def test_severity_is_the_accuracy_of_the_best_linear_rule() -> None:
    # Normal clouds two standard deviations apart: the best rule is right in Phi(1) = 0.8413.
    value = separability(cloud(0, 1000, 0), cloud(2, 1000, 1), 0)
    assert value == pytest.approx(0.8413, abs=0.02)


def test_the_sizes_of_the_sets_do_not_matter() -> None:
    value = separability(cloud(0, 1000, 0), cloud(2, 50, 1), 0)
    assert value == pytest.approx(0.84, abs=0.06)
    assert separability(cloud(0, 1000, 0), cloud(0, 50, 1), 0) == pytest.approx(0.5, abs=0.12)


def test_fewer_rows_than_dimensions_suffice() -> None:
    assert separability(cloud(0, 10, 0, 200), cloud(30, 10, 1, 200), 0) == 1.0


def test_a_set_of_fewer_than_three_different_points_has_no_severity() -> None:
    same, other = np.ones((6, 3), np.float32), cloud(0, 6, 0, 3)
    assert separability(same, other, 0) is None
    assert separability(other[:2], other[2:], 0) is None
    assert separability(other[:3], other[3:], 0) is not None


@pytest.mark.parametrize("shared", [1, 150, 300])
def test_shared_points_are_only_guessed(shared: int) -> None:
    first, second = cloud(0, 300, 0), cloud(0, 300, 1)
    second[:shared] = first[:shared]
    assert separability(first, second, 0) == pytest.approx(0.5, abs=0.07)


def test_the_same_seed_gives_the_same_number() -> None:
    first, second = cloud(0, 60, 0), cloud(1, 60, 1)
    assert separability(first, second, 3) == separability(first, second, 3)


def test_each_pair_of_neighbours_has_a_severity() -> None:
    def task(name: str, x: float) -> object:
        return make_task([text(x + i % 3, i % 2) for i in range(12)], [text()] * 2, name=name)

    near, far = task("near", 0), task("far", 50)
    context = FakeContext({})
    assert severities((near, near, far), context) == (0.5, 1.0)  # type: ignore[arg-type]


def test_equal_texts_have_a_half_whatever_their_labels() -> None:
    texts = [text(i % 7, i % 5) for i in range(40)]
    labels = [i % 2 for i in range(40)]
    task = make_task(texts, texts, labels=(labels, labels), name="task")
    flipped = [1 - label for label in labels]
    other = make_task(texts[::-1], texts, labels=(flipped, flipped), name="other")
    assert severities((task, other), FakeContext({})) == (0.5,)


def test_large_tasks_are_sampled_evenly_over_classes() -> None:
    task = make_task([text(i) for i in range(3 * MOST_ROWS)], [text()] * 2, name="many")
    few = make_task([text(i) for i in range(10)], [text()] * 2, name="few")
    context = FakeContext({})
    severities((task, few), context)
    assert [len(rows) for rows in context.embedded] == [MOST_ROWS, 10]
    assert np.bincount(context.embedded[0].labels).tolist() == [MOST_ROWS // 2] * 2
