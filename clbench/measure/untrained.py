"""Scores on tasks that the model has not been trained on yet."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from clbench.measure.rows import PreparedScenario, RowScorer
from clbench.methods.base import Vanilla
from clbench.training.context import Context


def score_before(
    scenario: PreparedScenario, context: Context, task: int, shown: Mapping[str, int]
) -> float:
    """Return the main score of a task that the method has not been trained on.

    `shown` are the outputs in use of each growing head; a missing one uses all.
    """
    model = context.model
    before, model.shown = model.shown, dict(shown)
    score = RowScorer(scenario, Vanilla(), context, None).main_score(task)
    model.shown = before
    return score


def scores_of_base(scenario: PreparedScenario, context: Context) -> tuple[list[float], float]:
    """Return the base model's score on each task when it is next, and the mean in the end."""
    shown, tasks = scenario.shown, range(len(scenario.scored))
    first = last = [score_before(scenario, context, j, shown(j + 1)) for j in tasks]
    if shown(len(tasks)):  # the last row of R is among all classes
        last = [score_before(scenario, context, j, {}) for j in tasks]
    return first, fmean(last)
