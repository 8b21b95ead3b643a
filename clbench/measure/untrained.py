"""Scores of tasks that have not been trained yet."""

from __future__ import annotations

from statistics import fmean

from clbench.measure.rows import PreparedScenario, RowScorer
from clbench.methods.base import Vanilla
from clbench.training.context import Context


def untrained_score(
    scenario: PreparedScenario, context: Context, task: int, shown: dict[str, int]
) -> float:
    """Return the main score of a task before its stage, with the weights of now.

    `shown` are the outputs in use of each growing head; a missing one uses all.
    """
    model = context.model
    before, model.shown = model.shown, shown
    try:
        return RowScorer(scenario, Vanilla(), context, None).main_score(task)
    finally:
        model.shown = before


def scores_of_base(scenario: PreparedScenario, context: Context) -> tuple[list[float], float]:
    """Return the base model's score on each task when it is next, and the mean of its last scores.

    The last scores are those on each task among all classes, as in the last row of R.
    """
    tasks = range(len(scenario.scored))
    first = last = [untrained_score(scenario, context, j, scenario.shown(j + 1)) for j in tasks]
    if scenario.shown(len(tasks)):
        last = [untrained_score(scenario, context, j, {}) for j in tasks]
    return first, fmean(last)
