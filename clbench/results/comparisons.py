"""Comparisons of a run's methods: with the reference, seed by seed, and with the controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clbench.results.cell import CellResult, row_differences, row_flips, without_extra_points
from clbench.results.score_tables import score_rows, scores_frame
from clbench.results.scores import SCORE, SCORES
from clbench.results.statistics import (
    ALPHA,
    Differences,
    compare,
    crossed_interval,
    summarise,
)
from clbench.suite.question import FEWEST, MEAN, Question

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("scenario", "shift", "method", "score", "n", "mean", "median", "deviation"),
    *("minimum", "maximum", "low", "high", "primary"),
    *("pairs", "difference", "spread", "freedom", "difference_low", "difference_high", "level"),
    *("p", "p_family", "verdict", "why", "rows", "rows_difference", "rows_low", "rows_high"),
    *("rows_only_method", "rows_only_reference", "rows_lost", "rows_gained"),
)
Group = tuple[str, str]  # scenario, score
BySeed = dict[str, dict[int, float]]  # by method and seed


def comparisons_frame(
    cells: Sequence[CellResult], question: Question, alpha: float = ALPHA
) -> pd.DataFrame:
    """Return summaries of all methods, and their differences from the reference.

    Differences are taken seed by seed. The comparisons of the primary question share one error
    rate; only they get a verdict. The others are exploratory: each interval holds on its own.

    Parameters
    ----------
    cells
        Cells of a run; failed ones and references are ignored.
    question
        The suite's primary question.
    alpha
        Error rate of the primary comparisons.

    Returns
    -------
    pandas.DataFrame
        Columns as in `COLUMNS`; scores are fractions. For each score that is `compared` or that
        the question asks for: ``n``
        seeds, mean, median, deviation, range, t interval at 95 %; whether the question asks for
        the comparison (``primary``); the fields of `Comparison`; ``why`` there is no verdict, such
        as too few seeds, or ``exploratory``; and for p_o and p_s
        in classification the number of ``rows``, the difference in the share of right ones, its
        95 % interval for other seeds *and* other rows of the same kind, and how many rows are right
        in the method or the reference only, as means over the common seeds. For p_o also how many
        rows the method lost and gained between the end of the first stage and that of the last, as
        means over its seeds. Where the question asks for means over scenarios, these have rows of
        their own, with `MEAN` in place of the scenario, over the methods and seeds that have all
        scenarios of the question.
    """
    import pandas as pd

    cells = without_extra_points(cells)
    frame = scores_frame(cells)
    frame = frame[frame["status"] == "ok"]
    steps = steps_by_scenario(cells)
    values = _scores(frame, question)
    if question.mean_over_scenarios:
        scenarios = dict.fromkeys(cell.scenario for cell in cells if cell.reference_of is None)
        covered = [scenario for scenario in scenarios if question.covers(scenario)]
        means, steps[MEAN] = _means_over_scenarios(values, steps, question, covered)
        values = means | values
    groups = {
        group: differences(by_method, question.reference, steps[group[0]].get(group[1], 0.0))
        for group, by_method in values.items()
    }
    asked = {
        group: {m: some for m, some in samples.items() if question.asks(*group, m)}
        for group, samples in groups.items()
    }
    primary = {
        (group, method): len(sample.values)
        for group, samples in asked.items()
        for method, sample in samples.items()
    }
    lower = [group for group in groups if not SCORE[group[1]].higher_is_better]
    answers = compare(
        asked,
        alpha=alpha,
        family=max(1, sum(pairs >= FEWEST for pairs in primary.values())),
        margin=question.margin,
        lower_is_better=lower,
    )
    others = compare(groups, family=1, lower_is_better=lower)
    by_seed: dict[tuple[str, str], dict[int, CellResult]] = {}
    for cell in cells:
        if cell.status == "ok" and cell.reference_of is None:
            by_seed.setdefault((cell.scenario, cell.baseline), {})[cell.seed] = cell
    shifts = {MEAN: "", **dict(zip(frame["scenario"], frame["shift"], strict=True))}
    rows = []
    for group, by_method in values.items():
        step = steps[group[0]].get(group[1], 0.0)
        names = {"scenario": group[0], "shift": shifts[group[0]], "score": group[1]}
        for method, seeds in by_method.items():
            row = {**names, "method": method, **asdict(summarise(list(seeds.values()), step))}
            row["primary"] = is_primary = (group, method) in primary
            ours, theirs = (
                by_seed.get((group[0], name), {}) for name in (method, question.reference)
            )
            row |= _flips(ours) if group[1] == "p_o" else {}
            comparison = (answers if is_primary else others).get((group, method))
            if method == question.reference:
                row["why"] = "the reference"
            elif comparison is None:
                row["why"] = _reason(question.reference, group[0], by_method)
                row |= {"pairs": 0, "verdict": "no verdict" if is_primary else None}
            else:
                row |= asdict(comparison)
                row |= _judgement(comparison.pairs, is_primary, comparison.verdict)
                row |= _rows(ours, theirs, group[1])
            rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _scores(frame: pd.DataFrame, question: Question) -> dict[Group, BySeed]:
    """Return the scores to compare by scenario and score, then by method and seed."""
    values: dict[Group, BySeed] = {}
    for key, some in frame.groupby(["scenario", "method"], sort=False):
        scenario, method = map(str, key)
        for score in SCORES:
            if not (score.compared or score.name in question.scores):
                continue
            numbers = some.dropna(subset=[score.name])
            if len(numbers):
                seeds = dict(zip(numbers["seed"], numbers[score.name], strict=True))
                values.setdefault((scenario, score.name), {})[method] = seeds
    return values


def _reason(reference: str, scenario: str, by_method: BySeed) -> str:
    """Return why a method has no comparison."""
    if reference in by_method:
        return f"no seed in common with {reference}"
    return f"{reference} {'lacks a scenario' if scenario == MEAN else 'has no finished cell'}"


def steps_by_scenario(cells: Sequence[CellResult]) -> dict[str, dict[str, float]]:
    """Return the smallest change of each score by scenario; see `score_steps`."""
    good = (cell for cell in cells if cell.status == "ok" and cell.reference_of is None)
    return {cell.scenario: score_steps(cell) for cell in good}


def step_of_mean(scenarios: Sequence[str], steps: Mapping[str, float]) -> float:
    """Return the smallest change that a seed's mean over scenarios can show, from those of each."""
    return math.hypot(*(steps[scenario] for scenario in scenarios)) / len(scenarios)


def _means_over_scenarios(
    values: Mapping[Group, BySeed],
    steps: Mapping[str, Mapping[str, float]],
    question: Question,
    scenarios: Sequence[str],
) -> tuple[dict[Group, BySeed], dict[str, float]]:
    """Return the means over the scenarios that a question covers, and their steps by score.

    They are those of the methods and seeds that have all of these scenarios.
    """
    means: dict[Group, BySeed] = {}
    mean_steps: dict[str, float] = {}
    for score in question.scores:
        tables = [values.get((scenario, score), {}) for scenario in scenarios]
        if not all(tables):  # every cell of a scenario failed
            continue
        for method in tables[0]:
            columns = [table.get(method, {}) for table in tables]
            seeds = sorted(set.intersection(*(set(column) for column in columns)))
            if seeds:
                by_method = means.setdefault((MEAN, score), {})
                by_method[method] = {seed: fmean(c[seed] for c in columns) for seed in seeds}
        of_score = {scenario: steps[scenario].get(score, 0.0) for scenario in scenarios}
        mean_steps[score] = step_of_mean(scenarios, of_score)
    return means, mean_steps


def score_steps(cell: CellResult) -> dict[str, float]:
    """Return the smallest change of each score by name, such as 1 / rows; empty if unknown.

    Means over tasks change by the step of a task over the number of tasks, here of the task with
    the fewest rows.
    """
    parts = cell.scenario_report.get("parts", [])
    steps = [1.0 / part["validation"] for part in parts if part.get("validation")]
    # The pretraining, where it is the first task, has no rows; its step counts as 0.
    steps = [0.0] * (len(cell.tasks) - len(cell.stages)) + steps
    if not parts or len(steps) != len(cell.tasks):
        return {}
    others = max(1, len(steps) - 1)
    measured = cell.settings.get("protocol", {}).get("capability_rows") or 1
    earlier, later = (max(some, default=0.0) / others for some in (steps[:-1], steps[1:]))
    return {
        "p_o": steps[0],
        "p_s": steps[-1],
        "forgetting": steps[0],
        "intransigence": steps[-1],
        "average": max(steps) / len(steps),
        "told": max(steps) / len(steps),
        "average_over_time": max(steps) / len(steps) ** 2,
        "area": max(steps) / len(steps) ** 2,
        "mean_forgetting": earlier,
        "bwt": earlier,
        "plasticity": later,
        "forward_transfer": later,
        "zero_shot_transfer": later,
        "gained": max(steps) / len(steps),
        # Losses and divergences are means of numbers without steps.
        "text_loss_added": 0.0,
        "divergence": 0.0,
        **dict.fromkeys(("zero_shot_lost", "same_token", "obedience"), 1.0 / measured),
    }


def differences(
    by_method: Mapping[str, Mapping[int, float]], reference: str, step: float
) -> dict[str, Differences]:
    """Return the differences of all methods from the reference, on the seeds that both have."""
    baseline = by_method.get(reference, {})
    return {
        name: Differences(
            tuple(seeds[seed] - baseline[seed] for seed in sorted(seeds.keys() & baseline)), step
        )
        for name, seeds in by_method.items()
        if name != reference
    }


def _rows(
    method: Mapping[int, CellResult], reference: Mapping[int, CellResult], score: str
) -> dict[str, float]:
    """Return the difference in the share of right rows, with its interval over seeds and rows."""
    task = {"p_o": 0, "p_s": -1}.get(score)
    table = None if task is None else row_differences(method, reference, task)
    if table is None:
        return {}
    low, high = crossed_interval(table, step=1.0 / table.shape[1])
    return {
        "rows": table.shape[1],
        "rows_difference": float(table.mean()),
        "rows_low": low,
        "rows_high": high,
        "rows_only_method": float((table > 0).sum(axis=1).mean()),
        "rows_only_reference": float((table < 0).sum(axis=1).mean()),
    }


def _flips(cells: Mapping[int, CellResult]) -> dict[str, float]:
    """Return the rows of the first task, and the mean numbers that a method lost and gained."""
    flips = [flip for cell in cells.values() if (flip := row_flips(cell)) is not None]
    if len(flips) < len(cells) or len({rows for rows, _, _ in flips}) != 1:
        return {}
    rows, lost, gained = map(fmean, zip(*flips, strict=True))
    return {"rows": rows, "rows_lost": lost, "rows_gained": gained}


def _judgement(pairs: int, is_primary: bool, verdict: str) -> dict[str, str | None]:
    """Return the verdict of a comparison, or why there is none."""
    if not is_primary:
        return {"verdict": None, "why": "exploratory"}
    why = ""
    if pairs < FEWEST:
        why = f"{pairs} common seed{'' if pairs == 1 else 's'}, {FEWEST} are needed"
    elif verdict == "no verdict":
        why = "the differences do not vary, and the step of the score is unknown"
    return {"verdict": verdict, "why": why}


CONTROL_FIELDS = (
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
        The fields `CONTROL_FIELDS`: for each control and method that is none, the sum of scores
        that is compared, such as ``p_o + p_s``, the mean training time of the control as a
        multiple of the reference's, and the fields of `Comparison`; ``better`` means that the
        method beats the control, and ``no verdict`` also that one of the two has no finished
        cell. Controls are sorted by time, with one decimal and then by name. Empty if no control
        was run.
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
    return pd.DataFrame(rows, columns=list(CONTROL_FIELDS))


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
