"""How far apart two tasks are: how well a linear classifier tells their rows apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from clbench.errors import ShiftError
from clbench.seeds import numpy_stream, stream_seed
from clbench.shifts.base import ShiftContext
from clbench.tasks.task import Rows, Task, stratified

MOST_ROWS = 1000
"""Training rows of each task that are looked at."""

FOLDS = 5

FloatArray = npt.NDArray[np.float64]


def severities(tasks: tuple[Task, ...], context: ShiftContext) -> tuple[float | None, ...]:
    """Severity of each pair of neighbours in training order; see `separability`.

    Two neighbours with the same texts have 0.5, whatever their labels; None where a task has
    fewer than two rows.

    Raises
    ------
    ShiftError
        If an embedding is not finite.
    """
    rows = [_sample(task, context.seed) for task in tasks]
    points = [context.embed(sample) for sample in rows]
    for task, values in zip(tasks, points, strict=True):
        if not np.isfinite(values).all():
            raise ShiftError(
                f"task {task.name!r}: the model gives embeddings that are not finite numbers. "
                "Take another model, or check its weights."
            )
    found: list[float | None] = []
    for i in range(len(tasks) - 1):
        texts = [_texts(sample) for sample in rows[i : i + 2]]
        if sorted(texts[0]) == sorted(texts[1]):
            found.append(0.5)
            continue
        seed = stream_seed("severity", tasks[i].name, tasks[i + 1].name, context.seed)
        found.append(separability(points[i], points[i + 1], seed % 2**32))
    return tuple(found)


def separability(
    first: npt.NDArray[np.float32], second: npt.NDArray[np.float32], seed: int
) -> float | None:
    """Cross-validated balanced accuracy of linear discriminant analysis between two sets.

    The covariance is shrunk as Ledoit & Wolf (2004) do, so that there is nothing to tune
    and fewer rows than dimensions suffice; both sets weigh the same.

    Parameters
    ----------
    first, second
        Embeddings, shapes (n, H) and (m, H).
    seed
        Decides the folds.

    Returns
    -------
    float or None
        0.5 = indistinguishable, 1.0 = always told apart; below 0.5 by chance only. None
        where a set has fewer than two rows.
    """
    folds = min(FOLDS, len(first), len(second))
    if folds < 2:
        return None
    points = np.concatenate([first, second]).astype(np.float64)
    sets = np.repeat([0, 1], [len(first), len(second)])
    right = np.zeros(len(sets), dtype=bool)
    for fit, held in _folds(points, sets, folds, seed):
        direction, border = _boundary(points[fit][sets[fit] == 0], points[fit][sets[fit] == 1])
        right[held] = (points[held] @ direction > border) == (sets[held] == 1)
    return float((right[sets == 0].mean() + right[sets == 1].mean()) / 2)


def _folds(
    points: FloatArray, sets: npt.NDArray[np.int64], folds: int, seed: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Rows to fit on and rows held out; a point that both sets have is not in both.

    It would be fitted as the one set's and asked for as the other's, and so be wrong every time.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    _, groups = np.unique(points, axis=0, return_inverse=True)
    groups = groups.ravel()
    if not np.intersect1d(groups[sets == 0], groups[sets == 1]).size:
        yield from StratifiedKFold(folds, shuffle=True, random_state=seed).split(points, sets)
    elif (folds := min(folds, int(groups.max()) + 1)) > 1:
        splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
        yield from splitter.split(points, sets, groups)
    else:
        yield np.arange(len(sets)), np.arange(len(sets))


def _boundary(first: FloatArray, second: FloatArray) -> tuple[FloatArray, float]:
    """Direction and threshold: a point whose projection is greater belongs to `second`."""
    from sklearn.covariance import ledoit_wolf

    means = first.mean(axis=0), second.mean(axis=0)
    within, _ = ledoit_wolf(
        np.concatenate([first - means[0], second - means[1]]), assume_centered=True
    )
    # Keeps the matrix invertible where the sets have no spread in some direction.
    floor = 1e-6 * float(np.concatenate([first, second]).var(axis=0).mean()) or 1.0
    direction = np.linalg.solve(within + floor * np.eye(len(within)), means[1] - means[0])
    return direction, float(direction @ (means[0] + means[1]) / 2)


def _texts(rows: Rows) -> list[tuple[str, str]]:
    second = rows.second or [""] * len(rows)
    return list(zip(rows.first, second, strict=True))


def _sample(task: Task, seed: int) -> Rows:
    if len(task.train) <= MOST_ROWS:
        return task.train
    rng = numpy_stream("severity rows", task.name, seed)
    return task.train.take(stratified(task.train.labels, MOST_ROWS, rng, task.regression))
