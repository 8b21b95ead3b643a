"""Comparisons of a run's methods: with the reference, seed by seed, and with the controls."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from clbench.results import statistics
from clbench.results.cell import (
    CellResult,
    correct_after,
    step_of_mean,
    steps_by_scenario,
    without_extra_points,
)
from clbench.results.remarks import remarks
from clbench.results.score_tables import BySeed, Group, score_rows, scores_to_compare
from clbench.suite.schema import FEWEST, MEAN, Question
from clbench.suite.scores import SCORE

Groups = Mapping[Group, Mapping[str, statistics.Differences]]
Comparisons = Mapping[tuple[Group, str], statistics.Comparison]

FIELDS = (
    *("scenario", "shift", "method", "score", "n", "mean", "median", "deviation"),
    *("minimum", "maximum", "low", "high", "primary"),
    *("pairs", "difference", "spread", "freedom", "difference_low", "difference_high", "level"),
    *("p", "p_family", "verdict", "why", "rows", "rows_difference", "rows_low", "rows_high"),
    *("rows_only_method", "rows_only_reference", "rows_lost", "rows_gained"),
    *("collapsed", "remark"),
)
CONTROL_FIELDS = (
    *("scenario", "sum", "control", "time", "method", "pairs", "difference", "spread", "freedom"),
    *("difference_low", "difference_high", "level", "p", "p_family", "verdict", "why"),
)


def comparisons_frame(
    cells: Sequence[CellResult], question: Question, alpha: float = statistics.ALPHA
) -> pd.DataFrame:
    """Return summaries of all methods, and their differences from the reference.

    Differences are taken seed by seed. The comparisons of the primary question share one error
    rate, `alpha`; only they get a verdict. The others are exploratory: each interval holds on its
    own. Failed cells are ignored; single-task references only give scores such as intransigence.

    Returns
    -------
    pandas.DataFrame
        The fields `FIELDS`; scores are fractions. For each score that is `compared` or that the
        question asks for: ``n`` seeds, mean, median, deviation, range, t interval at 95 %; whether
        the question asks for the comparison (``primary``); the fields of `Comparison`; ``why``
        there is no verdict, such as too few seeds, or ``exploratory``; and for p_o and p_s
        in classification the number of ``rows``, the difference in the share of right ones, its
        95 % interval for other seeds *and* other rows of the same kind, and how many rows are right
        in the method or the reference only, as means over the common seeds. For p_o also how many
        rows the method lost and gained between the end of the first stage and that of the last, as
        means over its seeds. How many runs of a method ``collapsed``, and a ``remark`` on it, see
        `clbench.results.remarks`. Where the question asks for means over scenarios, these have rows
        of their own, with `MEAN` in place of the scenario, over the methods and seeds that have all
        scenarios of the question.
    """
    values = scores_to_compare(without_extra_points(cells), question)
    cells = [cell for cell in without_extra_points(cells) if cell.reference_of is None]
    steps = steps_by_scenario(cells)
    noted = {(r["scenario"], r["score"], r["method"]): r for r in remarks(cells, question, values)}
    scenarios = dict.fromkeys(cell.scenario for cell in cells)
    covered = [scenario for scenario in scenarios if question.covers(scenario)]
    if question.mean_over_scenarios:
        means, steps[MEAN] = means_over_scenarios(values, steps, question, covered)
        values = means | values
    groups = {
        group: differences(by_baseline, question.reference, steps[group[0]].get(group[1], 0.0))
        for group, by_baseline in values.items()
    }
    primary, others = _families(groups, question, covered, alpha)
    by_seed: dict[tuple[str, str], dict[int, CellResult]] = {}
    for cell in cells:
        if cell.status == "ok":
            by_seed.setdefault((cell.scenario, cell.baseline), {})[cell.seed] = cell
    shifts = {MEAN: "", **{cell.scenario: cell.shift for cell in cells}}
    rows = []
    for group, by_baseline in values.items():
        scenario, score = group
        for method, seeds in by_baseline.items():
            row: dict[str, Any] = {"scenario": scenario, "shift": shifts[scenario], "score": score}
            summary = statistics.summarise(list(seeds.values()), steps[scenario].get(score, 0.0))
            row |= {"method": method, **asdict(summary)}
            row["primary"] = is_primary = question.asks(*group, method)
            ours, theirs = (
                by_seed.get((scenario, name), {}) for name in (method, question.reference)
            )
            row |= _flips(ours) if score == "p_o" else {}
            row |= {"collapsed": 0, "remark": "", **noted.get((scenario, score, method), {})}
            comparison = (primary if is_primary else others).get((group, method))
            if method == question.reference:
                row["why"] = "the reference"
            elif comparison is None:
                row |= {"pairs": 0, "verdict": "no verdict" if is_primary else None}
                lacks = "lacks a scenario" if scenario == MEAN else "has no finished cell"
                row["why"] = f"{question.reference} {lacks}"
                if question.reference in by_baseline:
                    row["why"] = f"no seed in common with {question.reference}"
            else:
                row |= {**asdict(comparison), **_rows(ours, theirs, score)}
                if not is_primary:
                    row |= {"verdict": None, "why": comparison.why or "exploratory"}
            rows.append(row)
    frame = pd.DataFrame(rows, columns=list(FIELDS))
    verdicts = [row.get("verdict") for row in rows]  # pandas 3 makes None among texts a NaN
    return frame.assign(verdict=pd.Series(verdicts, frame.index, dtype=object))


def _families(
    groups: Groups, question: Question, covered: Sequence[str], alpha: float
) -> tuple[Comparisons, Comparisons]:
    """Return the comparisons of the question as one family, and all of them, each on its own."""
    asked = {
        group: {m: some for m, some in samples.items() if question.asks(*group, m)}
        for group, samples in groups.items()
    }
    lower = [group for group in groups if not SCORE[group[1]].higher_is_better]
    gaps = {
        (MEAN, score): statistics.hidden_gap(
            [s for name in covered for s in groups.get((name, score), {}).values()], len(covered)
        )
        for score in question.scores
    }
    primary = statistics.compare(
        asked, alpha=alpha, margin=question.margin, lower_is_better=lower, known_gaps=gaps
    )
    return primary, statistics.compare(groups, family=1, lower_is_better=lower)


def means_over_scenarios(
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
        if not (tables and all(tables)):  # none is covered, or every cell of one failed
            continue
        for method in tables[0]:
            some = [table.get(method, {}) for table in tables]
            if seeds := sorted(set.intersection(*map(set, some))):
                by_baseline = means.setdefault((MEAN, score), {})
                by_baseline[method] = {seed: fmean(s[seed] for s in some) for seed in seeds}
        of_score = {scenario: steps[scenario].get(score, 0.0) for scenario in scenarios}
        mean_steps[score] = step_of_mean(scenarios, of_score)
    return means, mean_steps


def differences(
    by_baseline: Mapping[str, Mapping[int, float]], reference: str, step: float
) -> dict[str, statistics.Differences]:
    """Return the differences of all methods from the reference, on the seeds that both have."""
    theirs = by_baseline.get(reference, {})
    return {
        name: statistics.Differences(
            tuple(seeds[seed] - theirs[seed] for seed in sorted(seeds.keys() & theirs)), step
        )
        for name, seeds in by_baseline.items()
        if name != reference
    }


def _rows(
    method: Mapping[int, CellResult], reference: Mapping[int, CellResult], score: str
) -> dict[str, float]:
    """Return the difference in the share of right rows, with its interval over seeds and rows.

    Empty without a common seed, or if rows were not recorded or differ in number.
    """
    task = {"p_o": 0, "p_s": -1}.get(score)
    if task is None:
        return {}
    seeds = sorted(method.keys() & reference.keys())
    pairs = [[correct_after(cells[s], task) for cells in (method, reference)] for s in seeds]
    sizes = {None if bits is None else len(bits) for pair in pairs for bits in pair}
    if len(sizes) != 1 or None in sizes:
        return {}
    ours, theirs = np.array(pairs, dtype=np.float64).swapaxes(0, 1)  # seeds × rows
    table = ours - theirs
    low, high = statistics.crossed_interval(table, step=1.0 / table.shape[1])
    return {
        "rows": table.shape[1],
        "rows_difference": float(table.mean()),
        "rows_low": low,
        "rows_high": high,
        "rows_only_method": float((table > 0).sum(axis=1).mean()),
        "rows_only_reference": float((table < 0).sum(axis=1).mean()),
    }


def _flips(cells: Mapping[int, CellResult]) -> dict[str, float]:
    """Return the rows of the first task, and the mean numbers that a method lost and gained.

    Empty if they were not recorded, as for the pretraining and in regression.
    """
    flips = []
    for cell in cells.values():
        before, after = correct_after(cell, 0, 0), correct_after(cell, 0)
        if before is None or after is None:
            return {}
        flips.append((len(after), (before & ~after).sum(), (~before & after).sum()))
    if len({rows for rows, _, _ in flips}) != 1:
        return {}
    rows, lost, gained = map(fmean, zip(*flips, strict=True))
    return {"rows": rows, "rows_lost": lost, "rows_gained": gained}


def controls_frame(
    cells: Sequence[CellResult],
    question: Question = Question(),  # noqa: B008 - immutable
    alpha: float = statistics.ALPHA,
) -> pd.DataFrame:
    """Compare the methods of each scenario with its controls in the sum of the question's scores.

    Scores that no cell of a scenario has are left out there.

    Controls that keep rows are upper bounds and do not count. The reference counts as a control,
    since a method that is no better than it needs no control to refute it. The claim that is tested
    is that a method beats *every* control, so a test for each control needs no further correction
    (intersection-union test; Berger 1982). The comparisons are exploratory: one family of claims
    over all scenarios, apart from that of the question, with the error rate `alpha`.

    Returns
    -------
    pandas.DataFrame
        The fields `CONTROL_FIELDS`: for each control and method that is none, the sum of scores
        that is compared, such as ``p_o + p_s``, in which those where less is better count negative,
        the mean training time of the control as a
        multiple of the reference's, and the fields of `Comparison`; ``better`` means that the
        method beats the control, and ``no verdict`` also that one of the two has no finished
        cell. Controls are sorted by time, with one decimal and then by name. Empty if no control
        was run.
    """
    table, steps = score_rows(cells, question.reference), steps_by_scenario(cells)
    cells = [cell for cell in cells if cell.reference_of is None]
    scores: dict[str, list[str]] = {}
    for row in table:
        known = scores.setdefault(row["scenario"], [])
        known += [s for s in question.scores if row.get(s) is not None and s not in known]
    totals: dict[str, BySeed] = {}
    for row in table:
        if (total := _total(row, scores[row["scenario"]])) is not None:
            by_baseline = totals.setdefault(row["scenario"], {})
            by_baseline.setdefault(row["method"], {})[row["seed"]] = total
    groups: dict[tuple[str, str], dict[str, statistics.Differences]] = {}
    times: dict[tuple[str, str], float] = {}
    for scenario, by_baseline in totals.items():
        some = [cell for cell in cells if cell.scenario == scenario]
        seconds = {
            name: fmean(c.train_seconds for c in some if c.baseline == name and c.seed in seeds)
            for name, seeds in by_baseline.items()
        }
        unit = seconds.get(question.reference) or math.nan
        step = math.hypot(*(steps[scenario].get(score, 0.0) for score in scores[scenario]))
        controls = {cell.baseline: cell.keeps_rows for cell in some if cell.control}
        methods = {name: seeds for name, seeds in by_baseline.items() if name not in controls}
        names = [name for name, keeps_rows in controls.items() if not keeps_rows]
        if names:
            names = list(dict.fromkeys([*names, question.reference]))
        time = {name: seconds.get(name, math.nan) / unit for name in names}
        for control in sorted(names, key=lambda c: (math.isnan(time[c]), round(time[c], 1), c)):
            theirs = by_baseline.get(control, {})
            groups[scenario, control] = differences({**methods, control: theirs}, control, step)
            times[scenario, control] = time[control]
    claims = {
        (scenario, method)
        for (scenario, _), samples in groups.items()
        for method, sample in samples.items()
        if len(sample.values) >= FEWEST
    }
    comparisons = statistics.compare(groups, alpha=alpha, family=max(1, len(claims)))
    rows: list[dict[str, Any]] = []
    for (scenario, control), samples in groups.items():
        for method in samples:
            comparison = comparisons.get(((scenario, control), method))
            row = {"scenario": scenario, "sum": sum_of(scores[scenario])}
            row |= {"control": control, "method": method, "time": times[scenario, control]}
            row |= {"pairs": 0, "verdict": "no verdict", "why": ""}
            rows.append(row | (asdict(comparison) if comparison else {}))
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
