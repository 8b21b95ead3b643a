"""Random samples of rows: stratified, or of whole groups."""

from typing import Any

import numpy as np

IntArray = np.typing.NDArray[np.int64]


def whole_groups(groups: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Return the positions of random whole groups of at most `count` rows, ascending.

    One group is drawn even if it has more rows. `groups` are the numbers of the rows' groups,
    shape (n,).
    """
    names, sizes = np.unique(groups, return_counts=True)
    order = rng.permutation(len(names))
    fitting = int((np.cumsum(sizes[order]) <= count).sum())
    return np.flatnonzero(np.isin(groups, names[order[: max(1, fitting)]]))


def stratified(
    labels: np.typing.NDArray[Any], count: int, rng: np.random.Generator, regression: bool = False
) -> IntArray:
    """Return the positions of a stratified sample of at most `count` rows, ascending.

    Class sizes are proportional, rounded by largest remainder; every class keeps at least one
    row if `count` allows. For regression, one row is drawn from each of `count` quantile bins of
    the targets.
    """
    total = len(labels)
    if count >= total:
        return np.arange(total, dtype=np.int64)
    if regression:
        order = np.lexsort((rng.permutation(total), labels))
        edges = np.arange(count + 1, dtype=np.int64) * total // count
        picks = edges[:-1] + (rng.random(count) * np.diff(edges)).astype(np.int64)
        return np.sort(order[picks])
    classes, sizes = np.unique(labels, return_counts=True)
    quota, remainder = np.divmod(sizes.astype(np.int64) * count, total)
    largest = np.argsort(-remainder, kind="stable")
    quota[largest[: count - int(quota.sum())]] += 1
    if count >= len(classes):
        for empty in np.flatnonzero(quota == 0):
            quota[np.argmax(quota)] -= 1
            quota[empty] += 1
    positions = [
        rng.permutation(np.flatnonzero(labels == value))[:size]
        for value, size in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(positions))
