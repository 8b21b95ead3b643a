"""Remarks on the methods of a run: on collapses, missing effects, and tasks not learned."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from clbench.results.cell import CellResult, steps_by_scenario
from clbench.results.score_tables import BySeed, Group, scores_to_compare
from clbench.results.statistics import modes
from clbench.suite.schema import Question
from clbench.suite.scores import SCORE

STRENGTHS = ("strength", "importance", "weight", "c", "lambda_s", "rho", "gamma")
"""Names of the setting that says how strongly a method acts, the most telling first."""
CHANCE = 0.1
"""Share of the way from a task's floor to 1 below which a score counts as chance."""


def remarks(
    cells: Sequence[CellResult], question: Question, values: Mapping[Group, BySeed] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each scenario, score and method on which there is a remark.

    Its keys are ``scenario``, ``score``, ``method``, ``collapsed`` and ``remark``. A run collapsed
    if it lies on the worse side of the two `modes` of its method. A method changes nothing if it
    ends with the same rows right as the reference, in every task and on all common seeds, and, of a
    language model, with the same measures. It is at chance on a task if its mean score over seeds
    ends less than `CHANCE` of the way from the score of the best constant answer to 1. A language
    model is no better on a task than before training if its mean score right after the stage is not
    above that of the untrained model; this has no test.

    `values` are those of `scores_to_compare`, if they are known already.
    """
    good = [cell for cell in cells if cell.is_scored]
    steps, others = steps_by_scenario(good), _without_effect(good, question.reference)
    for (scenario, method, task), shares in _above_floors(good).items():
        if fmean(shares) < CHANCE:
            text = f"at chance or below on {task} in the end"
            others.setdefault((scenario, method), []).append(text)
    for key, texts in _not_learned(good).items():
        others.setdefault(key, []).extend(texts)
    rows: list[dict[str, Any]] = []
    values = scores_to_compare(cells, question) if values is None else values
    for (scenario, score), by_baseline in values.items():
        for method, seeds in by_baseline.items():
            n = len(seeds)
            step = steps.get(scenario, {}).get(score, 0.0)
            _, lower = modes(list(seeds.values()), step)
            collapsed = lower if SCORE[score].higher_is_better or not lower else n - lower
            texts = [f"{collapsed} of {n} runs collapsed in {SCORE[score].label}"] * bool(collapsed)
            if texts := texts + others.get((scenario, method), []):
                row = {"scenario": scenario, "score": score, "method": method}
                rows.append({**row, "collapsed": collapsed, "remark": "; ".join(texts)})
    return rows


def sentences(rows: Iterable[Mapping[Any, Any]], question: Question) -> dict[str, list[str]]:
    """Return the remarks on scores of the question by scenario, each once, with its methods."""
    methods: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        if row["score"] in question.scores:
            for remark in filter(None, row["remark"].split("; ")):
                methods.setdefault((row["scenario"], remark), {})[row["method"]] = None
    texts: dict[str, list[str]] = {}
    for (scenario, remark), names in methods.items():
        texts.setdefault(scenario, []).append(f"{', '.join(names)}: {remark}")
    return texts


def _without_effect(
    cells: Sequence[CellResult], reference: str
) -> dict[tuple[str, str], list[str]]:
    """Return the remark on each scenario and method that changes nothing."""
    theirs = {(c.scenario, c.seed): c for c in cells if c.baseline == reference}
    remarks: dict[tuple[str, str], list[str]] = {}
    changed = set()
    for cell in cells:
        key, other = (cell.scenario, cell.baseline), theirs.get((cell.scenario, cell.seed))
        if other is None or other is cell or not (cell.correct and any(cell.correct[-1])):
            continue
        ends = [(c.correct[-1:], c.R[-1], c.capabilities[-1:]) for c in (cell, other)]
        if ends[0] != ends[1]:
            changed.add(key)
        settings = cell.settings.get("method", {})
        is_share = {"share", "weight"} <= settings.keys()  # the share of texts decides more
        names = ("share",) if is_share else STRENGTHS
        strength = next((f": raise `{name}`" for name in names if name in settings), "")
        remarks[key] = [f"changes nothing here{strength}"]
    return {key: remark for key, remark in remarks.items() if key not in changed}


def _above_floors(cells: Iterable[CellResult]) -> dict[tuple[str, str, str], list[float]]:
    """Return how far above the floor each method ends, by scenario, method and task."""
    shares: dict[tuple[str, str, str], list[float]] = {}
    for cell in cells:
        for task, score, floor in zip(cell.tasks, cell.R[-1], cell.floors, strict=False):
            if score is not None and floor is not None and floor < 1.0:
                above = shares.setdefault((cell.scenario, cell.baseline, task), [])
                above.append((score - floor) / (1.0 - floor))
    return shares


def _not_learned(cells: Iterable[CellResult]) -> dict[tuple[str, str], list[str]]:
    """Return the remark on each scenario and method with a task no better than before training."""
    gains: dict[tuple[str, str, int, str], list[float]] = {}
    unknown = set()
    for cell in cells:
        if not cell.untrained:
            unknown.add((cell.scenario, cell.baseline))
        first = len(cell.tasks) - len(cell.untrained)  # the pretraining may be a task before them
        for at, before in enumerate(cell.untrained, first):
            score = cell.R[at][at]
            if score is not None and before is not None and before < 1.0:
                name = cell.tasks[at]
                if cell.tasks.count(name) > 1:
                    name = f"{name} (stage {at - first + 1})"
                key = cell.scenario, cell.baseline, at, name
                gains.setdefault(key, []).append(score - before)
    remarks: dict[tuple[str, str], list[str]] = {}
    for (scenario, method, _, task), some in gains.items():
        if (scenario, method) not in unknown and fmean(some) < 1e-9:  # sums are inexact
            text = f"no better on {task} right after its stage than the untrained model"
            remarks.setdefault((scenario, method), []).append(text)
    return remarks
