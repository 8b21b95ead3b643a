"""The scores of a cell, computed from its score matrix; see `clbench.suite.scores`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from clbench.suite.formulas import Curves, Floors, Measures, Metrics, Probes, Triangle
from clbench.suite.scores import SCORES

__all__ = ["SCORES", "quotient", "scores_of"]

LEAST_GAIN = 0.02
"""Score above the floors, summed over tasks, from which shares of it are given."""

Matrix = Sequence[Sequence[float | None]]


def scores_of(
    matrix: Matrix,
    *,
    alone: Mapping[int, float] = MappingProxyType({}),
    curves: Sequence[Curves] = (),
    floors: Floors | None = None,
    measures: Measures = (),
    metrics: Metrics = (),
    probes: Probes = (),
    reference: float | None = None,
    relearning: Mapping[str, Any] = MappingProxyType({}),
    file_scores: Mapping[str, float | None] = MappingProxyType({}),
) -> dict[str, float | None]:
    """Return the scores of one cell by name; most are None for a single task.

    Scores that need what is not given are left out.

    Parameters
    ----------
    matrix
        T rows of T entries; only those above the diagonal may be None.
    alone
        R*[j], the score of task j when trained alone, by j.
    curves
        For each stage the points (step, score) of each task so far.
    floors
        The floor of each task; None where it has none.
    measures
        Measures of a language model by name, before training and after each stage.
    metrics
        All metrics of each task after the last stage.
    probes
        Scores of linear probes: a row before training, then one for each stage.
    reference
        The reference method's score on the last task, p_s.
    relearning
        How the final model was trained again on the first task.
    file_scores
        Scores of the cell file, which are not computed again.

    Raises
    ------
    ValueError
        If the matrix is empty, not square or lacks an entry on or below the diagonal.
    """
    r: Triangle = [[v for v in row[: i + 1] if v is not None] for i, row in enumerate(matrix)]
    square = all(len(row) == len(matrix) for row in matrix)
    if not r or not square or any(len(row) != i for i, row in enumerate(r, 1)):
        raise ValueError("a score matrix must be square, with every score up to its diagonal")
    options = {
        "alone": alone or None,
        "curves": curves if curves and all(curves) else None,
        "floors": floors or None,
        "measures": measures or None,
        "metrics": metrics or None,
        "probes": probes or None,
        "reference": reference,
        "relearning": relearning or None,
    }
    scores = dict(file_scores)
    for score in SCORES:
        if score.name in file_scores:
            continue
        values = [options[need.option] for need in score.needs]
        if None in values or (score.ratio and not scores.keys() >= set(score.ratio)):
            continue
        scores[score.name] = None
        if len(r) > 1 or score.single_task:
            if score.ratio:
                scores[score.name] = quotient([scores], score.ratio)
            elif score.formula:
                scores[score.name] = score.formula(r, *values)
    return scores


def quotient(rows: Iterable[Mapping[Any, Any]], names: tuple[str, str]) -> float | None:
    """Return Σ first / Σ second over the rows that have both.

    None if Σ second is below `LEAST_GAIN` a row: a share of next to nothing is noise.
    """
    pairs = [[row.get(name) for name in names] for row in rows]
    pairs = [pair for pair in pairs if not any(v is None or math.isnan(v) for v in pair)]
    first, second = (math.fsum(values) for values in zip(*pairs, strict=True)) if pairs else (0, 0)
    return first / second if pairs and second >= LEAST_GAIN * len(pairs) else None
