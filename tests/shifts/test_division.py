"""One task divided by length and by clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_context import FakeContext, Spec, build, make_task, text
from hypothesis import given, settings
from hypothesis import strategies as st

from clbench.core.errors import SettingsError, ShiftError
from clbench.shifts.division import (
    EmbeddingCluster,
    SentenceLength,
    cluster,
    divide,
    equal_parts,
    nearest,
)
from clbench.tasks.registry import load_task
from clbench.tasks.task import Task


def words(task: Task, split: str = "train") -> list[int]:
    return [len(row.split()) - 2 for row in getattr(task, split).first]


def test_the_shorter_half_comes_first(by_length: Task) -> None:
    built = SentenceLength(task="base").build(FakeContext({"base": by_length}))
    short, long = built.tasks
    assert (short.name, long.name) == ("base[short]", "base[long]")
    assert short.head == long.head == "base"
    # Training lengths 8 1 5 4 2 7 3 6: the lower four are 1 to 4, in the source's order.
    assert words(short) == [1, 4, 2, 3]
    assert words(long) == [8, 5, 7, 6]
    assert short.train.index.tolist() == [1, 3, 4, 6]
    assert short.train.labels.tolist() == [0, 1, 1, 0]
    # The threshold 4 belongs to the short half, so a validation row of length 4 is short.
    assert words(short, "validation") == [1, 4, 3, 2]
    assert words(long, "validation") == [5, 6]
    assert built.numbers == {
        "unit": "tokens",
        "thresholds": [4],
        "ties": ["short"],
        "tied_training_rows": [1],
        "mean_length": {
            "train": {"short": 2.5, "long": 6.5},
            "validation": {"short": 2.5, "long": 5.5},
        },
    }
    assert short.source == {"origin": "here", "part": "short", "shift": "sentence-length"}


def test_ties_keep_the_halves_equal_and_send_validation_rows_one_way() -> None:
    train = [text(i, words=n) for i, n in enumerate([2, 3, 3, 3, 3, 9])]
    validation = [text(words=n) for n in (3, 1, 3, 4)]
    task = make_task(train, validation)
    built = SentenceLength(task="base").build(FakeContext({"base": task}))
    short, long = built.tasks
    # Three short rows: the one of 2 words and two of the four of 3 words.
    assert sorted(words(short)) == [2, 3, 3]
    assert sorted(words(long)) == [3, 3, 9]
    assert built.numbers["ties"] == ["short"]
    assert words(short, "validation") == [3, 1, 3]
    assert words(long, "validation") == [4]
    again = SentenceLength(task="base").build(FakeContext({"base": task}))
    assert again.tasks[0].train.index.tolist() == short.train.index.tolist()
    drawn = {
        tuple(
            SentenceLength(task="base")
            .build(FakeContext({"base": task}, seed=seed))
            .tasks[0]
            .train.index
        )
        for seed in range(10)
    }
    assert len(drawn) > 1


def test_ties_go_to_the_long_side_when_most_of_them_are_there() -> None:
    task = make_task([text(i, words=n) for i, n in enumerate([1, 2, 2, 2])], [text(words=2)] * 2)
    built = SentenceLength(task="base").build(FakeContext({"base": task}))
    assert built.numbers["ties"] == ["long"]
    assert words(built.tasks[1], "validation") == [2, 2]


def test_an_odd_row_goes_to_the_long_half() -> None:
    thresholds, halves = equal_parts(np.array([5, 1, 3]), 2, np.random.default_rng(0))
    assert thresholds.tolist() == [1]
    assert halves.tolist() == [1, 0, 1]


@given(st.lists(st.integers(0, 12), min_size=5, max_size=60), st.integers(2, 5), st.integers(0, 3))
@settings(deadline=None)
def test_parts_are_equal_and_ordered(lengths: list[int], k: int, seed: int) -> None:
    values = np.array(lengths)
    thresholds, parts = equal_parts(values, k, np.random.default_rng(seed))
    sizes = np.bincount(parts, minlength=k)
    assert sizes.max() - sizes.min() <= 1
    for part, threshold in enumerate(thresholds):
        assert values[parts == part].max() == threshold <= values[parts == part + 1].min()
    again = divide(values, thresholds, values, parts)
    clear = ~np.isin(values, thresholds)
    assert again[clear].tolist() == parts[clear].tolist()
    for value in np.unique(values):  # one part for each length, the one that got most of its rows
        (part,) = set(again[values == value].tolist())
        counts = np.bincount(parts[values == value], minlength=k)
        assert counts[part] == counts.max()


def test_three_parts_from_short_to_long(by_length: Task) -> None:
    built = SentenceLength(task="base", k=3).build(FakeContext({"base": by_length}))
    # Training lengths 8 1 5 4 2 7 3 6: two, three and three rows.
    assert [part.name for part in built.tasks] == [f"base[length-{i}]" for i in range(3)]
    assert [words(part) for part in built.tasks] == [[1, 2], [5, 4, 3], [8, 7, 6]]
    assert {part.head for part in built.tasks} == {"base"}
    assert built.numbers["k"] == 3
    assert built.numbers["thresholds"] == [2, 5]
    assert built.split is not None
    again = built.split.apply(by_length)
    assert [part.train.index.tolist() for part in again] == [
        part.train.index.tolist() for part in built.tasks
    ]


@pytest.mark.parametrize(
    ("unit", "short"),
    [("tokens", [0, 1]), ("words", [0, 1]), ("characters", [1, 2])],
)
def test_each_unit_counts_both_texts_of_a_pair(unit: str, short: list[int]) -> None:
    # Beside two numbers: tokens and words 0+3, 1+0, 2+2, 0+6; characters differ.
    first = ["0 0", "0 0 w", "0 0 w w", "0 0"]
    second = ["extraordinarily long words", "", "a b", "incomprehensibilities a b c d e"]
    task = make_task(first, first, second=(second, second), labels=([0, 1, 0, 1], [0, 1, 0, 1]))
    built = SentenceLength(task="base", unit=unit).build(FakeContext({"base": task}))
    assert built.tasks[0].train.index.tolist() == short
    assert built.tasks[0].train.second == [second[i] for i in short]


@pytest.mark.parametrize(("lengths", "k"), [([3, 3, 3, 3], 2), ([1, 2, 2, 1], 3)])
def test_too_few_lengths_are_refused(lengths: list[int], k: int) -> None:
    task = make_task([text(words=n) for n in lengths], [text(words=3)] * 4)
    message = f"4 training rows have only {len({*lengths})} different length.* into {k} parts"
    with pytest.raises(ShiftError, match=message):
        SentenceLength(task="base", k=k).build(FakeContext({"base": task}))


def test_an_empty_validation_half_is_refused(by_length: Task) -> None:
    task = replace(by_length, validation=by_length.validation.take([0, 5, 4, 1]))
    with pytest.raises(ShiftError) as caught:
        build(
            Spec("sentence-length", {"task": "base"}), FakeContext({"base": task}), severity=False
        )
    message = "scenario 'pair': the validation rows of 'base[long]' would be empty."
    assert str(caught.value).startswith(message)


def test_a_half_of_one_class_is_refused(by_length: Task) -> None:
    labels = np.array([1, 0, 1, 0, 0, 1, 0, 1])
    task = replace(by_length, train=replace(by_length.train, labels=labels))
    with pytest.raises(
        ShiftError, match=r"train rows of 'base\[short\]' \(4\) would all be of cla"
    ):
        build(
            Spec("sentence-length", {"task": "base"}), FakeContext({"base": task}), severity=False
        )


def test_tuning_rows_are_divided_too(by_length: Task) -> None:
    task = replace(by_length, tuning=by_length.validation.take([0, 3]))
    built = SentenceLength(task="base").build(FakeContext({"base": task}))
    assert [words(part, "tuning") for part in built.tasks] == [[1], [6]]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SettingsError, match=r"unit: must be 'tokens', 'words' or 'charac"):
        SentenceLength(task="base", unit="letters")
    with pytest.raises(SettingsError, match="task: is missing"):
        SentenceLength()
    with pytest.raises(SettingsError, match=r"unti: unknown key.* Did you mean 'unit'"):
        SentenceLength(task="base", unti="words")


@pytest.mark.real
@pytest.mark.parametrize("name", ["sst2", "rte"])
def test_halves_of_real_tasks_are_equal_and_ordered(name: str, real_data: Path) -> None:
    task = load_task(f"glue/{name}", data=real_data, base=Path(), own={})

    def count(rows: object) -> np.ndarray:
        second = rows.second or [""] * len(rows)  # type: ignore[attr-defined]
        both = zip(rows.first, second, strict=True)  # type: ignore[attr-defined]
        return np.array([len(a.split()) + len(b.split()) for a, b in both])

    context = FakeContext({task.name: task})
    built = SentenceLength(task=task.name, unit="words").build(context)
    short, long = built.tasks
    assert abs(len(short.train) - len(long.train)) <= 1
    assert count(short.train).max() <= count(long.train).min()
    assert count(short.validation).max() <= count(long.validation).min()
    assert count(long.train).mean() > 1.5 * count(short.train).mean()
    both = np.sort(np.concatenate([short.validation.index, long.validation.index]))
    assert both.tolist() == list(range(len(task.validation)))


LEFT = [(0, 0), (0, 2), (2, 0), (2, 2)]
RIGHT = [(10, 10), (10, 12)]


@pytest.fixture
def clustered() -> Task:
    """Four training rows about (1, 1), two about (10, 11), one after the other."""
    train = [LEFT[0], RIGHT[0], LEFT[1], LEFT[2], RIGHT[1], LEFT[3]]
    validation = [(9, 9), (1, 0), (20, 20), (3, 3)]
    return make_task(
        [text(*point) for point in train],
        [text(*point) for point in validation],
        labels=([0, 0, 1, 0, 1, 1], [0, 0, 1, 1]),
    )


def test_rows_go_to_the_nearest_of_the_fitted_centroids(clustered: Task) -> None:
    context = FakeContext({"base": clustered})
    built = EmbeddingCluster(task="base").build(context)
    large, small = built.tasks
    assert (large.name, small.name) == ("base[cluster-0]", "base[cluster-1]")
    assert large.head == small.head == "base"
    assert large.train.index.tolist() == [0, 2, 3, 5]
    assert small.train.index.tolist() == [1, 4]
    # Middle between (1, 1) and (10, 11): (9, 9) and (20, 20) are right, the others left.
    assert large.validation.index.tolist() == [1, 3]
    assert small.validation.index.tolist() == [0, 2]
    assert built.split is not None
    assert built.split.fitted == {"k": 2, "centroids": [[1.0, 1.0], [10.0, 11.0]]}
    assert built.numbers["cluster_sizes"] == {
        "train": {"cluster-0": 4, "cluster-1": 2},
        "validation": {"cluster-0": 2, "cluster-1": 2},
    }
    assert built.numbers["centroid_distance"] == pytest.approx(np.sqrt(81 + 100))
    assert [len(rows) for rows in context.embedded] == [6, 4, 6]  # the last for the figure


def test_centroids_are_fitted_on_training_rows_only(clustered: Task) -> None:
    moved = make_task(
        list(clustered.train.first),
        [text(100, 100), text(0, 100)] * 2,
        labels=([0] * 6, [0, 0, 1, 1]),
    )
    split = EmbeddingCluster(task="base").build(FakeContext({"base": moved})).split
    assert split is not None
    assert split.fitted["centroids"] == [[1.0, 1.0], [10.0, 11.0]]


def test_the_largest_cluster_comes_first() -> None:
    points = np.array([[0.0]] + [[10.0]] * 2 + [[20.0]] * 3, dtype=np.float32)
    assert cluster(points, 3, 0, "t").tolist() == [[20.0], [10.0], [0.0]]


def test_ties_in_size_and_distance_are_repeatable() -> None:
    points = np.array([[0.0], [0.0], [4.0], [4.0]], dtype=np.float32)
    first = cluster(points, 2, 7, "t")
    assert first.tolist() == cluster(points, 2, 7, "t").tolist()
    assert nearest(np.array([[2.0]], np.float32), np.array([[0.0], [4.0]])).tolist() == [0]


def test_nearest_centroids_are_computed() -> None:
    centroids = np.array([[0.0, 0.0], [3.0, 4.0]])
    points = np.array([[1.4, 2.0], [1.6, 2.0], [-9.0, 0.0]], np.float32)
    assert nearest(points, centroids).tolist() == [0, 1, 0]


def test_too_few_distinct_rows_are_refused() -> None:
    with pytest.raises(ShiftError, match=r"fall into 1 group, fewer than k = 2"):
        cluster(np.ones((5, 2), np.float32), 2, 0, "t")


def test_k_must_be_at_least_two() -> None:
    with pytest.raises(SettingsError, match=r"k: must be .* 2, got 1"):
        EmbeddingCluster(task="base", k=1)


def test_the_split_file_is_looked_for_beside_the_suite(clustered: Task, tmp_path: Path) -> None:
    built = EmbeddingCluster(task="base").build(FakeContext({"base": clustered}))
    assert built.split is not None
    built.split.save(tmp_path / "clusters.json")
    context = FakeContext({"base": clustered}, base=tmp_path)
    again = EmbeddingCluster(task="base", split="clusters.json").build(context)
    assert [part.train.digest for part in again.tasks] == [p.train.digest for p in built.tasks]
    assert len(context.embedded) == 1  # for the figure, not for the split


def test_more_clusters_than_rows_are_refused_before_rows_are_embedded(clustered: Task) -> None:
    context, rows = FakeContext({"base": clustered}), len(clustered.train)
    with pytest.raises(
        ShiftError, match=rf"k = {rows + 1} is too large: its train rows allow at most"
    ):
        EmbeddingCluster(task="base", k=rows + 1).build(context)
    assert context.embedded == []
