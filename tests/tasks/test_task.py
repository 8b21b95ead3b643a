from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clbench.core.errors import DataError
from clbench.tasks.registry import check_task
from clbench.tasks.sampling import stratified
from clbench.tasks.task import Rows, Task

labels_and_count = st.lists(st.integers(0, 4), min_size=1, max_size=60).flatmap(
    lambda labels: st.tuples(st.just(labels), st.integers(0, len(labels) + 3))
)


def draw(labels: list[int], count: int, seed: int = 0) -> np.ndarray:
    return stratified(np.array(labels), count, np.random.default_rng(seed))


def task_of(labels: list[int], regression: bool = False) -> Task:
    rows = Rows.of([f"text {i}" for i in range(len(labels))], None, labels, regression=regression)
    names = () if regression else tuple(str(i) for i in range(max(labels) + 1))
    return Task("t", names, ("pearson" if regression else "accuracy",), rows, rows, "t")


@given(labels_and_count, st.integers(0, 5))
def test_positions_are_distinct_ascending_and_as_many_as_asked(
    case: tuple[list[int], int], seed: int
) -> None:
    labels, count = case
    found = draw(labels, count, seed)
    assert len(found) == min(count, len(labels))
    assert (np.diff(found) > 0).all()
    assert found.dtype == np.int64


@given(labels_and_count)
def test_classes_keep_their_proportions(case: tuple[list[int], int]) -> None:
    labels, count = case
    found = draw(labels, count)
    classes, sizes = np.unique(labels, return_counts=True)
    drawn = np.array([(np.array(labels)[found] == value).sum() for value in classes])
    exact = sizes * min(count, len(labels)) / len(labels)
    rounded = (drawn == np.floor(exact)) | (drawn == np.ceil(exact))
    if count >= len(classes):
        assert (drawn > 0).all()
    # Only classes that gave a row to a class that would have had none may be off by more.
    poor = int((np.floor(exact) == 0).sum())
    assert (~rounded).sum() <= poor
    assert (drawn <= np.ceil(exact)).all()


@given(labels_and_count, st.integers(0, 10))
def test_a_smaller_draw_is_inside_a_larger_one_class_by_class(
    case: tuple[list[int], int], more: int
) -> None:
    labels, count = case
    small, large = draw(labels, count), draw(labels, count + more)
    for value in set(labels):
        inner = {i for i in small if labels[i] == value}
        outer = {i for i in large if labels[i] == value}
        assert inner <= outer or outer <= inner


@given(st.lists(st.floats(0, 5, width=32), min_size=1, max_size=50), st.integers(1, 50))
def test_targets_are_drawn_one_from_each_bin(targets: list[float], count: int) -> None:
    values = np.array(targets, dtype=np.float32)
    found = stratified(values, count, np.random.default_rng(0), regression=True)
    assert len(found) == min(count, len(values))
    assert (np.diff(found) > 0).all()
    if count < len(values):
        edges = [i * len(values) // count for i in range(count + 1)]
        ordered = np.sort(values)
        for number, value in enumerate(np.sort(values[found])):
            assert ordered[edges[number]] <= value <= ordered[edges[number + 1] - 1]


def test_largest_remainders_are_rounded_up_and_every_class_keeps_a_row() -> None:
    labels = [0] * 6 + [1] * 3 + [2]
    # 5 of 10: exact shares 3, 1.5, 0.5; the first of the equal remainders is rounded up,
    # then the class without a row takes one from the largest.
    counts = np.bincount(np.array(labels)[draw(labels, 5)], minlength=3)
    assert counts.tolist() == [2, 2, 1]
    assert np.bincount(np.array(labels)[draw(labels, 2)], minlength=3).tolist() == [1, 1, 0]


def test_limit_is_seeded_and_keeps_the_source_order() -> None:
    task = task_of([0, 1] * 50)
    first, again, other = task.limited(10), task.limited(10), task.limited(10, seed=1)
    assert first.train.index.tolist() == again.train.index.tolist()
    assert first.train.index.tolist() != other.train.index.tolist()
    assert first.train.index.tolist() != first.validation.index.tolist()
    assert (np.diff(first.train.index) > 0).all()
    assert np.bincount(first.train.labels).tolist() == [5, 5]
    assert first.train.first[0] == f"text {first.train.index[0]}"
    assert task.limited(None) is task
    assert task.limited(1000).train.digest == task.train.digest


def test_tuning_rows_leave_the_training_rows() -> None:
    task = task_of([0] * 60 + [1] * 40)
    split = task.with_tuning(0.1)
    assert split.tuning is not None
    assert np.bincount(split.tuning.labels).tolist() == [6, 4]
    assert np.bincount(split.train.labels).tolist() == [54, 36]
    together = np.sort(np.concatenate([split.tuning.index, split.train.index]))
    assert together.tolist() == list(range(100))
    assert split.validation.digest == task.validation.digest
    assert split.tuning.digest == task.with_tuning(0.1).tuning.digest  # type: ignore[union-attr]


def test_tuning_of_a_regression_task_covers_its_range() -> None:
    task = task_of(list(range(100)), regression=True)
    split = task.with_tuning(0.1)
    assert split.tuning is not None
    assert [int(value) // 10 for value in split.tuning.labels] == list(range(10))


def grouped(metric: str) -> Task:
    """Return a task with 40 groups of five rows, of which four are of class 0."""
    groups = np.repeat(np.arange(40), 5)
    rows = replace(task_of([0, 0, 1, 0, 0] * 40).train, groups=groups)
    return Task("t", ("no", "yes"), (metric,), rows, rows, "t")


@pytest.mark.parametrize("metric", ["accuracy", "exact-match"])
def test_tuning_rows_are_whole_groups(metric: str) -> None:
    task = grouped(metric).limited(100)
    split = task.with_tuning(0.2)
    assert split.tuning is not None
    assert 16 <= len(split.tuning) <= 20
    assert not set(split.tuning.groups) & set(split.train.groups)  # type: ignore[arg-type]
    assert len(split.tuning) + len(split.train) == 100
    again = split.redrawn(grouped(metric).train, 1)
    assert not set(split.tuning.groups) & set(again.train.groups)  # type: ignore[arg-type]
    one = replace(task, train=task.train.take([0, 1, 2]))
    one = replace(one, train=replace(one.train, groups=np.zeros(3, np.int64)))
    with pytest.raises(DataError, match="leaves one side empty"):
        one.with_tuning(0.5)


def test_a_limit_keeps_whole_groups_where_the_score_is_of_groups() -> None:
    by_row, by_group = (grouped(m).limited(60, scored=50) for m in ("accuracy", "exact-match"))
    assert [len(rows) for rows in by_row.splits.values()] == [60, 50]
    assert np.bincount(by_row.validation.labels).tolist() == [40, 10]
    assert by_row.validation.torn_groups > 0
    assert [len(rows) for rows in by_group.splits.values()] == [60, 50]
    assert [rows.torn_groups for rows in by_group.splits.values()] == [0, 0]
    assert (np.diff(by_group.train.index) > 0).all()
    classes = grouped("exact-match").limited(10, by_class=True)
    assert (len(classes.train), classes.train.torn_groups) == (20, 0)


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_a_tuning_split_that_leaves_a_side_empty_is_refused(fraction: float) -> None:
    with pytest.raises(DataError, match="leaves one side empty"):
        task_of([0, 1] * 10).with_tuning(fraction)


def test_equal_rows_have_equal_digests() -> None:
    rows = Rows.of(["ab", "c"], ["d", "e"], [0, 1])
    assert rows.digest == Rows.of(["ab", "c"], ["d", "e"], [0, 1]).digest
    others = [
        Rows.of(["a", "bc"], ["d", "e"], [0, 1]),
        Rows.of(["ab", "c"], ["d", "e"], [1, 0]),
        Rows.of(["ab", "c", "d", "e"], None, [0, 1]),
        rows.take([1, 0]),
    ]
    assert len({rows.digest, *(other.digest for other in others)}) == 5


def test_scored_rows_and_classes_have_their_own_limits() -> None:
    labels = [0] * 30 + [1] * 6 + [2] * 2
    rows = Rows.of([f"text {i}" for i in range(38)], None, labels)
    task = Task("mine", ("a", "b", "c"), ("accuracy",), rows, rows, head="mine")
    small = task.limited(20, scored=10)
    assert (len(small.train), len(small.validation)) == (20, 10)
    assert len(task.limited(None, scored=10).train) == 38
    classes = task.limited(5, scored=3, by_class=True)
    assert np.bincount(classes.train.labels).tolist() == [5, 5, 2]
    assert np.bincount(classes.validation.labels).tolist() == [3, 3, 2]
    both = task.limited(5, scored=10, by_class=True, scored_by_class=False)
    assert (len(both.train), len(both.validation)) == (5 + 5 + 2, 10)
    assert list(classes.train.index) == sorted(classes.train.index)
    assert set(classes.train.index) <= set(task.limited(6, by_class=True).train.index)
    with pytest.raises(DataError, match=r"Use scored_limit=3 or more \(key `scored_limit`"):
        task.limited(10, scored=2)
    small = task.limited(2, every_class=True)
    assert [np.bincount(r.labels).tolist() for r in small.splits.values()] == [[1, 1, 1]] * 2


def test_a_limit_below_the_number_of_classes_is_an_error() -> None:
    rows = Rows.of(["a", "b", "c", "d"], None, [0, 1, 0, 1])
    task = Task("mine", ("x", "y"), ("accuracy",), rows, rows, "mine")
    with pytest.raises(DataError) as caught:
        task.limited(1)
    assert str(caught.value) == (
        "task 'mine': a limit of 1 is less than the number of classes, 2. Use limit=2 or more "
        "(key `limit` in [protocol])."
    )
    assert len(task.limited(2).train) == 2


def test_the_metric_that_becomes_the_score_may_be_any_of_the_right_kind() -> None:
    task = task_of([0, 1])
    assert task.scored_by(None) is task
    assert task.scored_by("matthews").metrics == ("matthews", "accuracy")
    with pytest.raises(DataError, match=r"task_metric of 't': 'pearson' is not a classification"):
        task.scored_by("pearson")


ROWS = Rows.of(["a", "b", "c"], None, [0, 1, 0])
GOOD = Task("mine", ("no", "yes"), ("accuracy",), ROWS, ROWS, "mine")
PAIRS = Rows.of(["a", "b"], ["c", "d"], [0, 1])
NAN = Rows.of(["a"], None, [float("nan")], regression=True)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([GOOD], "its loader returned list, not a Task"),
        (replace(GOOD, name="other"), "its loader named it 'other'"),
        (replace(GOOD, labels=("no",)), "there is only one class, 'no'"),
        (replace(GOOD, metrics=()), "it has no metric"),
        (replace(GOOD, metrics=("acuracy",)), "'acuracy' is not a classification metric. Did you"),
        (replace(GOOD, metrics=("pearson",)), "'pearson' is not a classification metric"),
        (replace(GOOD, train=ROWS.take([])), "train rows: there are none"),
        (replace(GOOD, validation=PAIRS), "validation rows: every split needs as many texts"),
        (replace(GOOD, tuning=Rows.of(["a"], None, [2])), "tuning rows: the label of row 0 is 2; "),
        (
            replace(GOOD, train=Rows.of(["a"], None, [-1])),
            "a position in `labels`. Unlabelled test splits have -1",
        ),
        (replace(GOOD, train=Rows.of([1], None, [1])), "the text of row 0 is 1, a whole number"),  # type: ignore[list-item]
        (replace(GOOD, labels=("no", "no")), "two classes are called 'no'. Rename one."),
        (replace(GOOD, train=Rows.of(["a"], None, [0, 1])), "1 texts, 2 labels and 1 positions"),
        (
            replace(GOOD, labels=(), metrics=("pearson",), train=NAN),
            "the label of row 0 is nan; it must be a finite number",
        ),
    ],
)
def test_a_task_that_cannot_be_trained_on_is_an_error(result: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        check_task("mine", result)
    assert message in str(caught.value)
    assert str(caught.value).startswith("task 'mine'")


def test_a_target_beyond_float32_is_refused_without_a_warning() -> None:
    rows = Rows.of(["a", "b"], None, [1.0, 1e308], regression=True)
    task = Task("t", (), ("pearson",), rows, rows, "t")
    with pytest.raises(DataError, match="the label of row 1 is inf; it must be a finite number"):
        check_task("t", task)
