"""Remarks on the methods of a run: collapsed runs, and methods that change nothing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clbench.results.cell import CellResult, steps_by_scenario
from clbench.results.score_tables import score_rows
from clbench.results.statistics import modes
from clbench.suite.schema import Question
from clbench.suite.scores import SCORE, SCORES

Group = tuple[str, str]  # scenario, score
BySeed = dict[str, dict[int, float]]  # by baseline and seed

STRENGTHS = ("strength", "importance", "weight", "c", "lambda_s", "rho", "gamma")
"""Names of the setting that says how strongly a method acts, the most telling first."""


def scores_to_compare(cells: Sequence[CellResult], question: Question) -> dict[Group, BySeed]:
    """Return the scores to compare by scenario and score, then by baseline and seed."""
    names = [score.name for score in SCORES if score.compared or score.name in question.scores]
    values: dict[Group, BySeed] = {}
    for row in score_rows(cells):
        for name in names:
            if (value := row.get(name)) is not None:
                by_baseline = values.setdefault((row["scenario"], name), {})
                by_baseline.setdefault(row["method"], {})[row["seed"]] = value
    return values


def remarks(
    cells: Sequence[CellResult], question: Question, values: Mapping[Group, BySeed]
) -> list[dict[str, Any]]:
    """Return a row for each scenario, score and method on which there is a remark.

    Its keys are ``scenario``, ``score``, ``method``, ``collapsed`` and ``remark``. A run collapsed
    if it lies on the worse side of the two `modes` of its method. A method changes nothing if it
    ends with the same rows right as the reference, in every task and on all common seeds.
    """
    steps, without_effect = steps_by_scenario(cells), _without_effect(cells, question.reference)
    rows: list[dict[str, Any]] = []
    for (scenario, score), by_baseline in values.items():
        for method, seeds in by_baseline.items():
            n = len(seeds)
            step = steps.get(scenario, {}).get(score, 0.0)
            _, lower = modes(list(seeds.values()), step)
            collapsed = lower if SCORE[score].higher_is_better or not lower else n - lower
            texts = [f"{collapsed} of {n} runs collapsed in {SCORE[score].label}"] * bool(collapsed)
            texts += filter(None, [without_effect.get((scenario, method))])
            if texts:
                row = {"scenario": scenario, "score": score, "method": method}
                rows.append({**row, "collapsed": collapsed, "remark": "; ".join(texts)})
    return rows


def sentences(rows: Iterable[Mapping[Any, Any]]) -> list[str]:
    """Return each remark once, behind the names of its methods."""
    methods: dict[str, dict[str, None]] = {}
    for row in rows:
        for remark in filter(None, str(row["remark"] or "").split("; ")):
            methods.setdefault(remark, {})[row["method"]] = None
    return [f"{', '.join(names)}: {remark}" for remark, names in methods.items()]


def _without_effect(cells: Iterable[CellResult], reference: str) -> dict[tuple[str, str], str]:
    """Return the remark on each scenario and method that changes nothing."""
    good = [c for c in cells if c.status == "ok" and c.reference_of is None and c.correct]
    theirs = {(c.scenario, c.seed): c for c in good if c.baseline == reference}
    remarks: dict[tuple[str, str], str] = {}
    changed = set()
    for cell in good:
        key, other = (cell.scenario, cell.baseline), theirs.get((cell.scenario, cell.seed))
        if other is None or other is cell or not any(cell.correct[-1]):
            continue
        if (cell.correct[-1], cell.R[-1]) != (other.correct[-1], other.R[-1]):
            changed.add(key)
        settings = cell.settings.get("method", {})
        strength = next((f": raise `{name}`" for name in STRENGTHS if name in settings), "")
        remarks[key] = f"changes nothing here{strength}"
    return {key: remark for key, remark in remarks.items() if key not in changed}
