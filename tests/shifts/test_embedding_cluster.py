from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_context import FakeContext, make_task, text

from clbench.core.errors import SettingsError, ShiftError
from clbench.shifts.division import EmbeddingCluster, cluster, nearest
from clbench.tasks.task import Task

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
