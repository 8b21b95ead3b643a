"""Means of scores over all scenarios, and ranks of methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from clbench.results.cell import CellResult, step_of_mean, steps_by_scenario
from clbench.results.score_tables import score_rows
from clbench.results.statistics import Floats, critical_difference, crossed_interval, summarise
from clbench.suite.scores import SCORE

if TYPE_CHECKING:
    import pandas as pd

OVERALL_FIELDS = (
    *("score", "method", "scenarios", "seeds", "difference", "low", "high"),
    *("low_anywhere", "high_anywhere", "mean_rank", "critical_difference"),
)
FEWEST_SCENARIOS, ANYWHERE = 5, 0.99
"""Scenarios that an interval for others like them needs, and its level by `crossed_interval`.

Effects of scenarios are skewed: with exponential ones, 99 % cover the true mean in 94 % of draws or
more, and 95 % in .88 (`benchmarks/verdicts.py`).
"""
Values = dict[str, dict[str, dict[int, float]]]  # by baseline, scenario and seed


def overall_frame(
    cells: Sequence[CellResult],
    reference: str = "vanilla",
    scores: Sequence[str] = ("p_o", "p_s"),
) -> pd.DataFrame:
    """Return one row per score and method, over all scenarios of a run.

    Differences are modelled as mean + scenario + seed + rest, over the scenarios and seeds that
    the method and the reference have in common. Failed cells and single-task references are
    ignored.

    Returns
    -------
    pandas.DataFrame
        The numbers of ``scenarios`` and ``seeds`` compared; the mean ``difference`` from the
        reference; its 95 % interval ``low`` to ``high`` for the mean of *these* scenarios, by
        Student's t over seeds; its interval ``low_anywhere`` to ``high_anywhere`` if the scenarios
        are a sample, too, for `FEWEST_SCENARIOS` or more (`crossed_interval`); ``mean_rank`` among
        the methods that have all scenarios, over their common seeds, 1 for the best, with averaged
        ranks for ties; and the ``critical_difference`` of mean ranks. Numbers that need more
        scenarios or seeds are NaN.
    """
    import pandas as pd

    all_steps = steps_by_scenario(cells)
    cell_rows = score_rows(cells)
    rows: list[dict[str, Any]] = []
    for score in scores:
        values = scores_by_baseline(cell_rows, score)
        steps = {name: by_score.get(score, 0.0) for name, by_score in all_steps.items()}
        ranks = mean_ranks(values, higher_is_better=SCORE[score].higher_is_better)
        blocks = len({scenario for by_scenario in values.values() for scenario in by_scenario})
        critical = math.nan
        if len(ranks) > 1 and blocks > 1:
            critical = critical_difference(len(ranks), blocks)
        for method, by_scenario in values.items():
            row: dict[str, Any] = {"score": score, "method": method}
            row |= {"mean_rank": ranks.get(method, math.nan), "critical_difference": critical}
            if method != reference:
                row |= _difference(by_scenario, values.get(reference, {}), steps)
            rows.append(row)
    return pd.DataFrame(rows, columns=list(OVERALL_FIELDS))


def mean_ranks(values: Values, *, higher_is_better: bool) -> dict[str, float]:
    """Return the mean rank over scenarios of each method that has all of them.

    Methods are ranked by their means over the seeds that all of these methods have in a scenario;
    there are no ranks if that is none.
    """
    scenarios = {scenario for by_scenario in values.values() for scenario in by_scenario}
    methods = [method for method, by_scenario in values.items() if by_scenario.keys() == scenarios]
    sign = -1.0 if higher_is_better else 1.0
    if not methods:
        return {}
    table = []
    for scenario in sorted(scenarios):
        some = [values[method][scenario] for method in methods]
        seeds = sorted(set.intersection(*map(set, some)))
        if not seeds:
            return {}
        # rounded, so that means of equal sums tie
        table.append([sign * round(fmean(each[s] for s in seeds), 9) for each in some])
    ours, theirs = np.array(table)[:, :, None], np.array(table)[:, None, :]
    ranks = ((theirs < ours).sum(2) + ((theirs == ours).sum(2) + 1) / 2).mean(0)
    return dict(zip(methods, map(float, ranks), strict=True))


def scores_by_baseline(rows: Iterable[Mapping[str, Any]], score: str) -> Values:
    """Return a score of the rows of `score_rows` that have it."""
    values: Values = {}
    for row in rows:
        if (value := row.get(score)) is not None:
            by_scenario = values.setdefault(row["method"], {})
            by_scenario.setdefault(row["scenario"], {})[row["seed"]] = value
    return values


def paired_table(
    method: Mapping[str, Mapping[int, float]], reference: Mapping[str, Mapping[int, float]]
) -> tuple[list[str], list[int], Floats]:
    """Return the scenarios and seeds that two methods have in common, and their differences.

    The differences have the shape (seeds, scenarios). All three are empty if there is no scenario
    in common, or no seed that both methods have in all of these scenarios.
    """
    scenarios = [scenario for scenario in method if scenario in reference]
    if not scenarios:
        return [], [], np.empty((0, 0))
    seeds = sorted(set.intersection(*(method[s].keys() & reference[s].keys() for s in scenarios)))
    table = [[method[s][seed] - reference[s][seed] for s in scenarios] for seed in seeds]
    return scenarios, seeds, np.array(table)


def _difference(
    method: Mapping[str, Mapping[int, float]],
    reference: Mapping[str, Mapping[int, float]],
    steps: Mapping[str, float],
) -> dict[str, Any]:
    """Return the mean difference over common scenarios and seeds, and its intervals."""
    scenarios, seeds, table = paired_table(method, reference)
    if not seeds:
        return {"scenarios": len(scenarios), "seeds": 0}
    step = step_of_mean(scenarios, steps)
    here = summarise(list(table.mean(1)), step)
    low, high = math.nan, math.nan
    if len(scenarios) >= FEWEST_SCENARIOS:
        low, high = crossed_interval(table, ANYWHERE, step)
    return {
        "scenarios": len(scenarios),
        "seeds": len(seeds),
        "difference": here.mean,
        "low": here.low,
        "high": here.high,
        # No narrower than for these scenarios: with few of them the estimate may be.
        "low_anywhere": min(low, here.low),
        "high_anywhere": max(high, here.high),
    }
