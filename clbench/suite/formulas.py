"""The formulas of the scores.

R[i][j] is the score on task j after stage i, 0-based; with T tasks, L = T - 1 is the last stage.
f[j] is the floor of task j: the score of always predicting the majority class. P[i][j] is the score
of a linear probe of task j on the features after stage i.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Triangle = list[list[float]]
"""R on and below the diagonal: row i has i + 1 entries."""
Floors = Sequence[float | None]
"""The floor of each task of R; None for a task without one, such as the pretraining."""
Curves = Mapping[str, Sequence[Sequence[float]]]
"""Points (step, score) by task."""
Probes = Sequence[Sequence[float | None]]
"""P: a row before training, then one for each stage, and a score for each task of R."""
Measures = Sequence[Mapping[str, float | None]]
"""Measures of a language model by name, before training and after each stage."""
Metrics = Sequence[Mapping[str, float | None] | None]
"""All metrics of each task of R after the last stage."""


def backward_transfer(r: Triangle) -> float:
    """Return the mean over j < L of R[L, j] - R[j, j] (Lopez-Paz & Ranzato 2017, equation 3)."""
    last = len(r) - 1
    return math.fsum(r[last][task] - r[task][task] for task in range(last)) / last


def mean_forgetting(r: Triangle) -> float:
    """Return the mean over j < L of the best R[l, j], j <= l < L, minus R[L, j].

    Chaudhry et al. 2018, section 3.
    """
    last = len(r) - 1
    best = [max(r[stage][task] for stage in range(task, last)) for task in range(last)]
    return math.fsum(best[task] - r[last][task] for task in range(last)) / last


def average_over_time(r: Triangle) -> float:
    """Return the mean over i of the mean over j <= i of R[i, j].

    Rebuffi et al. 2017, section 4: average incremental accuracy.
    """
    return math.fsum(math.fsum(row) / len(row) for row in r) / len(r)


def area(curves: Sequence[Curves]) -> float | None:
    """Return the area under the curve of the mean score over the tasks so far, over its length.

    Steps are counted through all stages, and the curve is straight between the steps at which all
    tasks so far have a point (Koh et al. 2022, section 3.2). None for a curve of one point.
    """
    steps: list[float] = []
    means: list[float] = []
    start = 0.0
    for stage in curves:
        tasks = [{point[0]: point[1] for point in points} for points in stage.values()]
        for step in sorted(set.intersection(*map(set, tasks))):
            steps.append(start + step)
            means.append(math.fsum(task[step] for task in tasks) / len(tasks))
        start = max([start, *steps])
    parts = zip(steps, steps[1:], means, means[1:], strict=False)
    total = math.fsum((after - before) * (m + n) / 2 for before, after, m, n in parts)
    return total / (steps[-1] - steps[0]) if steps[-1] > steps[0] else None


def mean_metric(metrics: Metrics, name: str) -> float | None:
    """Return the mean of a metric over the tasks that have it, or None without any."""
    return mean_of_known((values or {}).get(name) for values in metrics)


def gap(r: Triangle, alone: Mapping[int, float], tasks: Iterable[int]) -> float | None:
    """Return the mean over `tasks` of R*[j] - R[j, j]; None if one has no R*, or there are none."""
    gaps = [alone[task] - r[task][task] if task in alone else None for task in tasks]
    return None if None in gaps else mean_of_known(gaps)


def plasticity(r: Triangle, alone: Mapping[int, float]) -> float | None:
    """Return the mean over j > 0 of R[j, j] - R*[j]; None if a task has no R*."""
    missed = gap(r, alone, range(1, len(r)))
    return None if missed is None else -missed


def gain(scores: Sequence[float], floors: Floors) -> float | None:
    """Return the sum of scores above their floors, or None if a floor is missing."""
    above = [s - floor for s, floor in zip(scores, floors, strict=True) if floor is not None]
    return math.fsum(above) if len(above) == len(scores) else None


def features_forgetting(r: Triangle, probes: Probes) -> float | None:
    """Return the mean over j < L of P[j, j] - P[L, j] (Davari et al. 2022)."""
    shift = len(probes) - len(r)
    return mean_of_known(_drop(probes[j + shift][j], probes[-1][j]) for j in range(len(r) - 1))


def head_gap(r: Triangle, probes: Probes) -> float | None:
    """Return the mean over j < L of P[L, j] - R[L, j]."""
    return mean_of_known(_drop(probes[-1][j], r[-1][j]) for j in range(len(r) - 1))


def forward_transfer(r: Triangle, probes: Probes) -> float | None:
    """Return the mean over j > 0 of P[j - 1, j] minus that of the pretrained model.

    Lopez-Paz & Ranzato 2017, equation 4, with the scores of probes instead of untrained heads.
    """
    shift = len(probes) - len(r)
    return mean_of_known(
        _drop(probes[j + shift - 1][j], probes[0][j]) for j in range(2 - shift, len(r))
    )


def measure_change(measures: Measures, name: str, sign: float = 1.0) -> float | None:
    """Return a measure after the last stage minus that before training, times `sign`."""
    drop = _drop(measures[-1].get(name), measures[0].get(name))
    return None if drop is None else sign * drop


def _drop(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before - after


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None without any."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def rows_to_relearn(relearning: Mapping[str, Any]) -> float:
    """Return the fewest rows that brought a task back, or twice the most tried."""
    most = relearning["rows"][-1]
    return float(relearning.get("needed", most) if relearning["recovered"] else 2 * most)
