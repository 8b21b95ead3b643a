"""Scores made of the score matrix R: R[i][j] is the score on task j after stage i."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]


def scores_of(matrix: Matrix) -> dict[str, float | None]:
    """All scores of one cell by name.

    With T tasks, 0-based, L = T - 1 the last stage:

    - ``p_o``: R[L, 0], the old task after all training; ``p_s``: R[L, L], the new one;
      ``p`` = p_o + p_s; ``p_o_before``: R[0, 0] (Kenneweg et al. 2022, section 3).
    - ``forgetting``: R[0, 0] - R[L, 0] for the first task; positive means forgotten.
    - ``average``: mean of the last row. ``bwt``: mean over j < L of R[L, j] - R[j, j]
      (Lopez-Paz & Ranzato 2017, equation 3).
    - ``mean_forgetting``: mean over j < L of max over j <= l < L of R[l, j] - R[L, j]
      (Chaudhry et al. 2018, section 3); equal to ``forgetting`` for a pair.

    Forward transfer is not defined for heads that were not trained yet and is left out.

    Parameters
    ----------
    matrix
        T rows of T entries; those above the diagonal may be None, others not.

    Returns
    -------
    dict
        For a single task only ``p_s`` and ``average``; the others are None.

    Raises
    ------
    ValueError
        If the matrix is empty, not square or lacks an entry on or below the diagonal.
    """
    size = len(matrix)
    if size == 0 or any(len(row) != size for row in matrix):
        raise ValueError(f"a score matrix is square and not empty, got {size} rows")
    last = size - 1
    r = [[_known(matrix[i][j], i, j) for j in range(i + 1)] for i in range(size)]
    single: dict[str, float | None] = {
        "p_o": None,
        "p_s": r[last][last],
        "p": None,
        "p_o_before": None,
        "forgetting": None,
        "bwt": None,
        "average": sum(r[last]) / size,
        "mean_forgetting": None,
    }
    if size == 1:
        return single
    before = range(last)
    best = [max(r[stage][task] for stage in range(task, last)) for task in before]
    return {
        "p_o": r[last][0],
        "p_s": r[last][last],
        "p": r[last][0] + r[last][last],
        "p_o_before": r[0][0],
        "forgetting": r[0][0] - r[last][0],
        "bwt": sum(r[last][task] - r[task][task] for task in before) / last,
        "average": sum(r[last]) / size,
        "mean_forgetting": sum(best[task] - r[last][task] for task in before) / last,
    }


def _known(value: float | None, row: int, column: int) -> float:
    if value is None:
        raise ValueError(f"the score matrix lacks R[{row}][{column}]")
    return value
