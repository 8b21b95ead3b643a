"""Shifts that divide one task: by length of the texts, and by clusters of their embeddings."""

import warnings
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from clbench.core.errors import ShiftError, count
from clbench.core.seeds import numpy_stream, stream_seed
from clbench.shifts.base import DividingShift, ShiftContext, Split
from clbench.tasks.task import IntArray, Rows, Task


class SentenceLength(DividingShift):
    """D_o is the shorter half of the training rows, D_s the longer half; or `k` parts by length.

    The shift of Kenneweg et al. 2022, section 4.1. Their published code does not divide by
    length: it pairs sorted positions with unsorted rows, and counts a pair as 2.

    Part j of k ends before row n · (j + 1) // k of the n sorted training rows, with ties broken at
    random; its threshold is the length of its longest row. Rows of other splits go to the part
    whose lengths enclose theirs; a length at which training rows are divided goes to the part that
    got most of them (the shorter one if equal).

    Attributes
    ----------
    unit
        Unit of length: the model's ``tokens`` (before truncation, without special ones),
        ``words`` separated by blanks, or ``characters``. Both texts of a pair count.
    k
        Number of parts, from short to long.
    """

    name = "sentence-length"
    short_name = "length"

    unit: Literal["tokens", "words", "characters"] = "tokens"
    k: Annotated[int, Field(ge=2, exclude_if=lambda v: v == 2)] = 2  # in files only if not 2

    def fit(self, task: Task, context: ShiftContext) -> Split:
        """Return a split at the thresholds of the training rows.

        Raises
        ------
        ShiftError
            If the training rows have fewer than `k` different lengths.
        """
        lengths = {key: self._lengths(rows, context) for key, rows in task.splits.items()}
        train = lengths["train"]
        if (different := len(np.unique(train))) < self.k:
            raise ShiftError(
                f"task {task.name!r}: the {len(train)} training rows have only "
                f"{count(different, 'different length')} in {self.unit}, so they cannot be "
                f"divided into {self.k} parts. Use more rows, another unit or a smaller k."
            )
        rng = numpy_stream("length ties", task.name, self.unit, context.seed)
        thresholds, parts = equal_parts(train, self.k, rng)
        names = self._names()
        part_of = {
            key: parts if key == "train" else divide(values, thresholds, train, parts)
            for key, values in lengths.items()
        }
        at = divide(thresholds, thresholds, train, parts)
        fitted = {
            **self.fitted_settings(),
            "thresholds": thresholds.tolist(),
            "ties": [names[part] for part in at],
        }
        numbers: dict[str, Any] = {
            **fitted,
            "tied_training_rows": [int((train == value).sum()) for value in thresholds],
            "mean_length": {
                key: {
                    name: float(part.mean()) if len(part := values[part_of[key] == i]) else None
                    for i, name in enumerate(names)
                }
                for key, values in lengths.items()
            },
        }
        return Split.of(self.name, task, names, part_of, fitted, numbers)

    def picture(self, task: Task, parts: tuple[Task, ...], context: ShiftContext) -> dict[str, Any]:
        """Return a histogram, ``[length, rows]`` in order, for each split and part."""
        counts: dict[str, dict[str, list[list[int]]]] = {}
        for key in ("train", "validation"):
            for name, part in zip(self._names(), parts, strict=True):
                lengths = self._lengths(getattr(part, key), context)
                histogram = np.unique(lengths, return_counts=True)
                counts.setdefault(key, {})[name] = np.stack(histogram, axis=1).tolist()
        return {"kind": "lengths", "task": task.name, "unit": self.unit, "counts": counts}

    def _names(self) -> list[str]:
        return ["short", "long"] if self.k == 2 else [f"length-{part}" for part in range(self.k)]

    def _lengths(self, rows: Rows, context: ShiftContext) -> IntArray:
        if self.unit == "tokens":
            return np.asarray(context.lengths(rows), dtype=np.int64)
        words = self.unit == "words"
        counts = [[len(text.split() if words else text) for text in texts] for texts in rows.texts]
        total: IntArray = np.asarray(counts, dtype=np.int64).sum(axis=0)
        return total


def equal_parts(lengths: IntArray, k: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return the length at which each part but the last ends, (k - 1,), and each row's part, (n,).

    `lengths` have shape (n,); part j ends before sorted row n · (j + 1) // k. `rng` decides
    which of the rows at a threshold belong to the shorter part.
    """
    n = len(lengths)
    order = np.lexsort((rng.permutation(n), lengths))
    ends = n * np.arange(1, k) // k
    parts = np.empty(n, dtype=np.int64)
    parts[order] = np.searchsorted(ends, np.arange(n), side="right")
    return lengths[order[ends - 1]], parts


def divide(
    lengths: IntArray, thresholds: IntArray, training: IntArray, parts: IntArray
) -> IntArray:
    """Return the part of each of `lengths`, (n,): that of most `training` rows of a threshold."""
    numbers: IntArray = np.searchsorted(thresholds, lengths).astype(np.int64)
    for value in np.unique(thresholds):
        numbers[lengths == value] = np.bincount(parts[training == value]).argmax()
    return numbers


FIGURE_ROWS, AXES = 500, 20
"""Maximum rows of the figure, and principal axes to project their embeddings on."""
STARTS = 10
"""Restarts of k-means; the best result counts."""

FloatArray = np.typing.NDArray[np.float64]


class EmbeddingCluster(DividingShift):
    """k-means on the pooled embeddings of the frozen pretrained encoder, largest part first.

    The shift of Kenneweg et al. 2022, section 4.1, with the clusters fitted on the training
    rows and applied to the validation rows; the published code does it the other way round.

    Attributes
    ----------
    k
        Number of clusters.
    """

    name = "embedding-cluster"
    short_name = "clusters"

    k: Annotated[int, Field(ge=2)] = 2

    def fit(self, task: Task, context: ShiftContext) -> Split:
        """Cluster the training rows, and assign every row to its nearest centroid."""
        for split, rows in task.splits.items():
            # Equal texts cannot be divided, and a part needs rows of two classes.
            different = len(set(zip(*rows.texts, strict=True)))
            most = min(different, len(rows) if task.regression else len(rows) // 2)
            if self.k > most:
                raise ShiftError(
                    f"task {task.name!r}: k = {self.k} is too large: its {split} rows allow at "
                    f"most {most} ({count(len(rows), 'row')}, "
                    f"{count(different, 'different text')}). Use more rows or a smaller k."
                )
        points = {key: context.embed(rows) for key, rows in task.splits.items()}
        seed = stream_seed("clusters", task.name, self.k, context.seed) % 2**32
        centroids = cluster(points["train"], self.k, seed, f"task {task.name!r}")
        part_of = {key: nearest(values, centroids) for key, values in points.items()}
        names = [f"cluster-{number}" for number in range(self.k)]
        sizes = {
            key: dict(zip(names, np.bincount(numbers, minlength=self.k).tolist(), strict=True))
            for key, numbers in part_of.items()
        }
        report: dict[str, Any] = {
            "cluster_sizes": sizes,
            "centroid_distance": float(np.linalg.norm(centroids[0] - centroids[1])),
        }
        fitted = {**self.fitted_settings(), "centroids": centroids.tolist()}
        return Split.of(self.name, task, names, part_of, fitted, report)

    def picture(self, task: Task, parts: tuple[Task, ...], context: ShiftContext) -> dict[str, Any]:
        """Return a sample of training rows on their principal axes, with parts and labels."""
        from sklearn.decomposition import PCA

        rng = numpy_stream("picture", task.name, self.k, context.seed)
        rows = np.sort(rng.permutation(len(task.train))[:FIGURE_ROWS])
        part_of = {i: n for n, part in enumerate(parts) for i in part.train.index.tolist()}
        # Embed the sample only: with a saved split, no row has been embedded yet.
        points = context.embed(task.train.take(rows))
        projected = PCA(min(AXES, *points.shape), svd_solver="full").fit_transform(points)
        labels = task.train.labels[rows].tolist()
        return {
            "kind": "clusters",
            "task": task.name,
            "rows": len(task.train),
            "parts": [part_of[i] for i in task.train.index[rows].tolist()],
            "labels": [task.labels[i] for i in labels] if task.labels else labels,
            "points": projected.astype(np.float64).round(3).tolist(),
        }


def cluster(points: np.typing.NDArray[np.float32], k: int, seed: int, where: str) -> FloatArray:
    """Return k centroids of `points` (n, h), shape (k, h), the largest cluster first.

    Raises
    ------
    ShiftError
        If there are fewer than `k` distinct points; the message starts with `where`.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a ShiftError below
        fitted = KMeans(n_clusters=k, n_init=STARTS, random_state=seed).fit(points)
    groups = nearest(points, fitted.cluster_centers_.astype(np.float64))
    sizes = np.bincount(groups, minlength=k)
    if (sizes == 0).any():
        raise ShiftError(
            f"{where}: the embeddings of {len(points)} training rows fall into "
            f"{count(int((sizes > 0).sum()), 'group')}, fewer than k = {k}. Use more rows or a "
            "smaller k."
        )
    # The last digits of scikit-learn's means depend on the timing of threads: compute new ones.
    order = np.argsort(-sizes, kind="stable")
    means: FloatArray = np.stack([points[groups == i].mean(axis=0, dtype="f8") for i in order])
    return means


def nearest(points: np.typing.NDArray[np.float32], centroids: FloatArray) -> IntArray:
    """Return the number of each point's nearest centroid, the first of equally near; (n,)."""
    wide = points.astype(np.float64)
    # |p - c|² without |p|², which is the same for all centroids.
    distances = (centroids**2).sum(axis=1) - 2.0 * wide @ centroids.T
    numbers: IntArray = distances.argmin(axis=1).astype(np.int64)
    return numbers
