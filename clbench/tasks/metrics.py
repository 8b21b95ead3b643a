"""The metrics of GLUE, as fractions: accuracy, F1, Matthews, Pearson and Spearman."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clbench.errors import DataError, NonFiniteLossError, did_you_mean

FloatArray = npt.NDArray[np.float64]


def accuracy(confusion: FloatArray) -> float:
    """Share of rows whose class was found."""
    return float(np.trace(confusion) / confusion.sum())


def f1(confusion: FloatArray) -> float:
    """F1 of class 1 where there are two classes, else the plain mean over the classes (macro).

    A class that neither occurs nor is predicted has F1 0.
    """
    hits = np.diag(confusion)
    whole = confusion.sum(axis=0) + confusion.sum(axis=1)
    each = np.divide(2 * hits, whole, out=np.zeros_like(hits), where=whole > 0)
    return float(each[1]) if len(each) == 2 else float(each.mean())


def matthews(confusion: FloatArray) -> float:
    """Matthews correlation, for more than two classes as R_K (Gorodkin 2004).

    Where it is undefined, because all rows or all predictions are of one class, it is 0.
    """
    rows, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    total = confusion.sum()
    covariance = np.trace(confusion) * total - rows @ predicted
    spread = (total**2 - predicted @ predicted) * (total**2 - rows @ rows)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(outputs: FloatArray, targets: FloatArray) -> float:
    """Pearson correlation; 0 where it is undefined, because one side is constant."""
    if np.ptp(outputs) == 0 or np.ptp(targets) == 0:
        return 0.0
    x, y = _unit(outputs), _unit(targets)
    return float(np.clip(x @ y, -1.0, 1.0))


def spearman(outputs: FloatArray, targets: FloatArray) -> float:
    """Pearson correlation of the ranks, tied values sharing the mean of their ranks."""
    return pearson(_ranks(outputs), _ranks(targets))


CLASSIFICATION: dict[str, Callable[[FloatArray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
}
REGRESSION: dict[str, Callable[[FloatArray, FloatArray], float]] = {
    "pearson": pearson,
    "spearman": spearman,
}
METRICS = (*CLASSIFICATION, *REGRESSION)
"""All names."""


def score(
    metrics: Sequence[str], outputs: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> dict[str, float]:
    """The metrics of a model's outputs.

    Parameters
    ----------
    metrics
        Names in `METRICS`, all for classes or all for regression.
    outputs
        Logits of shape (n, C), of which the greatest (the first of equals) is the answer;
        or predictions of shape (n,) or (n, 1) for regression.
    labels
        Shape (n,): class numbers, or targets.

    Returns
    -------
    dict of str to float
        By name, in the order of `metrics`; fractions, always finite.

    Raises
    ------
    DataError
        If there are no rows, or a metric is unknown.
    NonFiniteLossError
        If an output is not a number: the model has diverged.
    """
    for name in metrics:
        if name not in METRICS:
            raise DataError(f"Unknown metric {name!r}.{did_you_mean(name, METRICS)}")
    if len(labels) == 0:
        raise DataError("There are no rows to score.")
    if not np.isfinite(outputs).all():
        bad = int((~np.isfinite(outputs)).reshape(len(outputs), -1).any(axis=1).sum())
        raise NonFiniteLossError(
            f"The model's outputs are infinite or not numbers for {bad} of {len(outputs)} rows."
        )
    scores: dict[str, float] = {}
    confusion: FloatArray | None = None
    for name in metrics:
        if name in CLASSIFICATION:
            if confusion is None:
                confusion = _confusion(outputs, labels)
            scores[name] = CLASSIFICATION[name](confusion)
        else:
            flat = np.asarray(outputs, dtype=np.float64).reshape(len(labels))
            scores[name] = REGRESSION[name](flat, np.asarray(labels, dtype=np.float64))
    return scores


def _confusion(logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> FloatArray:
    """Counts of rows by class (down) and predicted class (across), shape (C, C)."""
    classes = logits.shape[1]
    cells = labels.astype(np.int64) * classes + logits.argmax(axis=1)
    counts = np.bincount(cells, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.float64)


def _unit(values: FloatArray) -> FloatArray:
    centred = values - values.mean()
    scaled = centred / np.abs(centred).max()  # squares of huge or tiny values stay finite
    unit: FloatArray = scaled / np.sqrt(scaled @ scaled)
    return unit


def _ranks(values: FloatArray) -> FloatArray:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    mean_rank: FloatArray = (last - (sizes - 1) / 2.0)[group]
    return mean_rank
