"""Methods against the controls of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clbench.results.cell import CellResult
from clbench.results.comparisons import differences, score_steps
from clbench.results.score_tables import score_rows
from clbench.results.scores import SCORE
from clbench.results.statistics import ALPHA, Differences, compare
from clbench.suite.question import FEWEST, Question

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("scenario", "sum", "control", "time", "method", "pairs", "difference", "spread", "freedom"),
    *("difference_low", "difference_high", "level", "p", "p_family", "verdict"),
)


def controls_frame(
    cells: Sequence[CellResult],
    question: Question = Question(),  # noqa: B008 - immutable
    alpha: float = ALPHA,
) -> pd.DataFrame:
    """Compare the methods of each scenario with its controls in the sum of the question's scores.

    Scores that no cell of a scenario has are left out there.

    Controls that keep rows are upper bounds and do not count. The claim that is tested is that a
    method beats *every* control, so a test for each control needs no further correction
    (intersection-union test; Berger 1982). The comparisons are exploratory: one family of claims
    over all scenarios, apart from that of the question, with the error rate `alpha`.

    Parameters
    ----------
    cells
        Cells of a run; failed ones and single-task references are ignored.
    question
        Names the scores, of which those where less is better count negative, and the reference,
        whose time is the unit.
    alpha
        Error rate of the family.

    Returns
    -------
    pandas.DataFrame
        Columns as in `COLUMNS`: for each control and method that is none, the sum of scores that
        is compared, such as ``p_o + p_s``, the mean training time of
        the control as a multiple of the reference's, and the fields of `Comparison`; ``better``
        means that the method beats the control, and ``no verdict`` also that one of the two has no
        finished cell. Controls are sorted by time, with one decimal and then by name. Empty if no
        control was run.
    """
    import pandas as pd

    table = score_rows(cells, question.reference)
    scores: dict[str, list[str]] = {}
    for row in table:
        known = scores.setdefault(row["scenario"], [])
        known += [s for s in question.scores if row.get(s) is not None and s not in known]
    totals = {
        (row["scenario"], row["method"], row["seed"]): total
        for row in table
        if (total := _total(row, scores[row["scenario"]])) is not None
    }
    by_name: dict[str, dict[str, dict[int, CellResult]]] = {}
    failed: dict[str, dict[str, CellResult]] = {}
    for cell in cells:
        if cell.reference_of is None and cell.status != "ok":
            failed.setdefault(cell.scenario, {})[cell.baseline] = cell
        if (cell.scenario, cell.baseline, cell.seed) in totals and cell.reference_of is None:
            methods = by_name.setdefault(cell.scenario, {})
            methods.setdefault(cell.baseline, {})[cell.seed] = cell
    groups: dict[tuple[str, str], dict[str, Differences]] = {}
    times: dict[tuple[str, str], float] = {}
    for scenario, methods in by_name.items():
        first = {name: next(iter(by_seed.values())) for name, by_seed in methods.items()}
        values = {
            name: {seed: totals[scenario, name, seed] for seed in by_seed}
            for name, by_seed in methods.items()
            if not first[name].control
        }
        seconds = {
            name: fmean(cell.train_seconds for cell in by_seed.values())
            for name, by_seed in methods.items()
        }
        unit = seconds.get(question.reference, 0.0)
        for control, cell in first.items():
            if cell.control and not cell.keeps_rows:
                base = {seed: totals[scenario, control, seed] for seed in methods[control]}
                steps = score_steps(cell)
                step = math.hypot(*(steps.get(score, 0.0) for score in scores[scenario]))
                groups[scenario, control] = differences({control: base, **values}, control, step)
                times[scenario, control] = seconds[control] / unit if unit else math.nan
        for name, cell in failed.get(scenario, {}).items():
            if name not in methods and cell.control and not cell.keeps_rows:
                groups[scenario, name] = {method: Differences(()) for method in values}
                times[scenario, name] = math.nan
    claims = {
        (scenario, method)
        for (scenario, _), samples in groups.items()
        for method, sample in samples.items()
        if len(sample.values) >= FEWEST
    }
    comparisons = compare(groups, alpha=alpha, family=max(1, len(claims)))
    rows = []
    for (scenario, control), samples in groups.items():
        for method in samples:
            comparison = comparisons.get(((scenario, control), method))
            names = {"scenario": scenario, "sum": sum_of(scores[scenario])}
            names |= {"control": control, "method": method}
            numbers = asdict(comparison) if comparison else {"pairs": 0, "verdict": "no verdict"}
            rows.append({**names, "time": times[scenario, control], **numbers})
    order = {scenario: position for position, scenario in enumerate(by_name)}

    def by_cost(row: dict[str, Any]) -> tuple[int, bool, float, str]:
        time = row["time"]
        return order[row["scenario"]], math.isnan(time), round(time, 1), row["control"]

    rows.sort(key=by_cost)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _total(row: Mapping[str, Any], scores: Sequence[str]) -> float | None:
    """Return the sum of scores, less is better counted negative; None if one is missing."""
    values = [row.get(score) for score in scores]
    signs = [1.0 if SCORE[score].higher_is_better else -1.0 for score in scores]
    known = [sign * v for sign, v in zip(signs, values, strict=True) if v is not None]
    return math.fsum(known) if values and len(known) == len(values) else None


def sum_of(scores: Sequence[str]) -> str:
    """Return the sum in which methods are compared with controls, such as ``p_o + p_s``."""
    terms = ((" + " if SCORE[s].higher_is_better else " − ") + SCORE[s].label for s in scores)
    return "".join(terms).removeprefix(" + ").lstrip()
