"""Severity of a shift: how well a linear classifier separates the rows of two tasks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from clbench.core.seeds import numpy_stream, stream_seed
from clbench.shifts.base import ShiftContext
from clbench.tasks.task import Task, stratified

MOST_ROWS = 1000
"""Maximum training rows of each task to compare."""
FOLDS = 5


def severities(tasks: tuple[Task, ...], context: ShiftContext) -> tuple[float | None, ...]:
    """Return the severity between each task and the next one; see `separability`.

    It is 0.5 for two tasks with the same texts, whatever their labels.
    """
    texts, points = [], []
    for task in tasks:
        rows = task.train
        if len(rows) > MOST_ROWS:
            rng = numpy_stream("severity rows", task.name, context.seed)
            rows = rows.take(stratified(rows.labels, MOST_ROWS, rng, task.regression))
        texts.append(sorted(zip(*rows.columns, strict=True)))
        points.append(context.embed(rows))
    values: list[float | None] = []
    for i, (one, other) in enumerate(pairwise(tasks)):
        seed = stream_seed("severity", one.name, other.name, context.seed) % 2**32
        same = texts[i] == texts[i + 1]
        values.append(0.5 if same else separability(points[i], points[i + 1], seed))
    return tuple(values)


def separability(
    first: npt.NDArray[np.float32], second: npt.NDArray[np.float32], seed: int
) -> float | None:
    """Return the cross-validated balanced accuracy of linear discriminant analysis.

    0.5 = indistinguishable, 1.0 = always distinguishable; below 0.5 only by chance. None if a
    set has fewer than three distinct rows.

    `first` and `second` are embeddings, shapes (n, h) and (m, h), with equal weight; `seed`
    decides the folds. Ledoit-Wolf shrinkage of the covariance (2004) needs no tuning, and fewer
    rows than dimensions suffice.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_val_predict

    points = np.concatenate([first, second]).astype(np.float64)
    sets = np.repeat([0, 1], [len(first), len(second)])
    _, groups = np.unique(points, axis=0, return_inverse=True)
    distinct = [np.unique(groups[sets == number]) for number in (0, 1)]
    folds = min(FOLDS, *map(len, distinct))
    if folds < 3:
        return None
    # A point in both sets must not be in a training fold and a test fold at once.
    shared = np.intersect1d(distinct[0], distinct[1]).size > 0
    predicted = cross_val_predict(
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=(0.5, 0.5)),
        points,
        sets,
        groups=groups if shared else None,
        cv=(StratifiedGroupKFold if shared else StratifiedKFold)(
            folds, shuffle=True, random_state=seed
        ),
    )
    return float(balanced_accuracy_score(sets, predicted))
