"""Verdicts and error rates in words, and differences as texts for a paper's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pandas as pd

from clbench.core.errors import count
from clbench.results.statistics import ALPHA, Verdict, look_at, spend
from clbench.suite.schema import FEWEST, MEAN, Question
from clbench.suite.scores import SCORE

Row = Mapping[Any, Any]
INTERVAL = ("difference", "difference_low", "difference_high")
MARKS: dict[str, str] = dict(zip(get_args(Verdict), "▲▼=○?", strict=True))
"""Signs of the verdicts, for readers who see no colours."""


def mark(verdict: object) -> str:
    """Return the sign of a verdict."""
    return MARKS.get(str(verdict), MARKS["no verdict"])


def signed(value: float) -> str:
    """Return a number with its sign and three digits, never ``-0.000``."""
    return f"{round(value, 3) + 0.0:+.3f}"


@dataclass(frozen=True)
class Line:
    """A line of the verdict: its texts, each with the style in which the page shows it."""

    parts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "".join(text for text, _ in self.parts)


def verdict_lines(comparisons: pd.DataFrame, scenario: str, question: Question) -> list[Line]:
    """Return lines on one scenario: one for each score of the question, or why there is none.

    They name the methods by verdict, the largest difference first, with the interval. For `MEAN` in
    place of a scenario, a last line names the methods that lack a scenario.
    """
    table = comparisons[comparisons["scenario"] == scenario]
    rows = [row for row in table.to_dict("records") if row["score"] in question.scores]
    scores = {row["score"] for row in rows}
    reference = question.reference
    names = {row["method"] for row in rows}
    compared = [row for row in rows if isinstance(row["verdict"], str)]
    problem = ""
    if not rows:
        problem = _lack(question.scores[0])
        if scenario == MEAN:
            problem = "No method has one seed with this score on all scenarios of the question."
    elif reference not in names:
        lacks = "lacks a scenario" if scenario == MEAN else "has no finished cell"
        problem = f"{reference} {lacks}, so there is nothing to compare with."
    elif names == {reference}:
        problem = f"Only {reference} has a finished cell."
    elif not compared:
        problem = f"The question compares no method with {reference} here."
    elif (most := max(int(row["pairs"]) for row in compared)) < FEWEST:
        problem = f"No verdict: at least {FEWEST} common seeds are needed (here {most})."
    if problem:
        return [Line(((problem, ""),))]
    lines = []
    for score in question.scores:
        some = [row for row in compared if row["score"] == score]
        less = "" if SCORE[score].higher_is_better else ", less is better"
        parts = [(SCORE[score].subject or f"{SCORE[score].label}{less}", "title")]
        if some:
            lines.append(_by_verdict(parts, some, question))
        elif score not in scores:
            lack = _lack(score)
            if scenario == MEAN:
                lack = "A scenario of the question lacks this score."
            lines.append(Line((*parts, (f". {lack}", ""))))
    if scenario == MEAN:
        absent = [m for m in dict.fromkeys(comparisons["method"]) if m not in names]
        if others := [m for m in absent if question.asks(MEAN, question.scores[0], m)]:
            lack = "lacks" if len(others) == 1 else "lack"
            lines.append(Line(((f"Without {_join(others)}, which {lack} a scenario.", ""),)))
    return lines


def _by_verdict(parts: list[tuple[str, str]], rows: Sequence[Row], question: Question) -> Line:
    """Return a line with the methods by verdict, the largest difference first, after `parts`."""
    by_verdict: dict[str, list[Row]] = {}
    titles = {
        "better": f"better than {question.reference}",
        "worse": f"worse than {question.reference}",
        "equivalent": f"within ±{question.margin:g} of {question.reference}",
    }
    for row in sorted(rows, key=lambda row: (not row["pairs"] > 0, -abs(row["difference"]))):
        few = row["pairs"] < FEWEST  # NaN where a reading is refused
        by_verdict.setdefault("too few seeds" if few else row["verdict"], []).append(row)
    for verdict in (*MARKS, "too few seeds"):
        if methods := by_verdict.get(verdict):
            title, first = titles.get(verdict, verdict), len(parts) == 1
            parts += [
                (". " if first else "; ", ""),
                (title[0].upper() + title[1:] if first else title, verdict),
                (f": {', '.join(_describe(row, verdict) for row in methods)}", ""),
            ]
    return Line((*parts, (".", "")))


def matched_lines(matched: pd.DataFrame, scenario: str, question: Question) -> list[Line]:
    """Return a line for each score and level of `clbench.results.matched.matched_frame`."""
    table = matched[(matched["scenario"] == scenario) & matched["verdict"].notna()]
    lines = []
    for (score, level), some in table.groupby(["score", "learned"], sort=False):
        kind = SCORE[str(score)]
        less = "" if kind.higher_is_better else ", less is better"
        title = f"{kind.label} where {level:g} is learned{less}"
        lines.append(_by_verdict([(title, "title")], some.to_dict("records"), question))
    return lines


def control_line(controls: pd.DataFrame, scenario: str, question: Question) -> Line | None:
    """Return a line on the methods that do not beat every control; None if all do.

    The reference counts as one. Each is named with the cheapest control that it does not beat.
    Methods that were not compared with every control, such as one that failed, are not said to beat
    them.
    """
    everything = controls[controls["scenario"] == scenario]
    table = everything[everything["pairs"] >= FEWEST]
    unbeaten: dict[str, Row] = {}
    for row in table[table["verdict"] != "better"].to_dict("records"):
        unbeaten.setdefault(row["method"], row)
    if not unbeaten:
        return None
    texts = []
    for control in dict.fromkeys(row["control"] for row in unbeaten.values()):
        rows = [row for row in unbeaten.values() if row["control"] == control]
        time = rows[0]["time"]
        has_cost = time == time and control != question.reference  # NaN differs from itself
        cost = f" ({time:.2g} × the time of {question.reference})" if has_cost else ""
        names = ", ".join(_describe(row, row["verdict"]) for row in rows)
        texts.append(f"not shown to beat {control}{cost}: {names}")
    count_controls = everything.groupby("method")["control"].nunique()
    beaten = table[table["verdict"] == "better"].groupby("method")["control"].nunique()
    methods = (m for m in dict.fromkeys(table["method"]) if m != question.reference)
    winners = [m for m in methods if beaten.get(m) == count_controls[m]]
    if winners:
        texts.append(f"better than every control and {question.reference}: {_join(winners)}")
    text = "; ".join(texts)
    title = f"{everything['sum'].iloc[0]} against controls"
    return Line(((title, "title"), (f". {text[0].upper()}{text[1:]}.", "")))


def paper_frame(comparisons: pd.DataFrame, question: Question) -> pd.DataFrame:
    """Return the scores of the question and their differences as texts for a paper's table.

    It has a row for each scenario and method, or for each method if the question is about means
    over scenarios. Only comparisons of the question have the sign of a verdict.
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in comparisons.to_dict("records"):
        scenario, method, score = row["scenario"], row["method"], row["score"]
        if score in question.scores and (scenario == MEAN) == question.mean_over_scenarios:
            cells = rows.setdefault((scenario, method), {"scenario": scenario, "method": method})
            spread = "" if row["deviation"] != row["deviation"] else f" ± {row['deviation']:.3f}"
            label = SCORE[score].label
            cells[label] = f"{row['mean']:.3f}{spread}"
            cells[f"{label} − {question.reference}"] = _difference(row).replace("-", "−")
    frame = pd.DataFrame(list(rows.values())).fillna("")
    alone = len(frame) and frame["scenario"].nunique() == 1
    return frame.drop(columns="scenario") if alone else frame


def paper_note(question: Question, smoke: str) -> str:
    """Return the note under the table for a paper."""
    signs = ", ".join(f"{sign} {verdict}" for verdict, sign in MARKS.items())
    differences = f"difference from {question.reference}, seed by seed, with its interval"
    return f"{smoke} Mean ± standard deviation over seeds; {differences}. {signs}.".strip()


def error_rates(
    looks: Sequence[int],
    complete: int,
    begun: int,
    controls: int,
    curves: int,
    matched: int = 0,
) -> list[str]:
    """Return sentences on the error rates of a page after planned `looks`.

    All methods have `complete` seeds in all scenarios, some have `begun`: a page on more of them
    than were complete at a look is an interim report, for which no error rate was planned.
    `controls`, `curves` and `matched` are the numbers of claims to beat all controls, of
    comparisons of trade-off curves, and of those at equal learning.
    """
    risk = f"the risk of even one wrong “better” or “worse” among them is at most {ALPHA:.0%}"
    family = f" at {ALPHA:.0%}"
    lines = [f"All these intervals hold jointly at {1 - ALPHA:.0%} or more, so {risk}."]
    if looks:
        shares, position = spend(looks), look_at(looks, begun)
        share, spent = shares[position], sum(shares[: position + 1])
        planned = f"Looks were planned after {_join([str(look) for look in looks])} seeds."
        if complete == begun == looks[position]:
            family += " over all looks"
            text = (
                f"This is look {position + 1} of {len(looks)}, with {complete} seeds: it spends "
                f"{share:.2%} of the error rate of {ALPHA:.0%}, and {spent:.2%} are spent so far. "
                f"All these intervals hold jointly at {1 - share:.2%} or more, and over all looks "
                f"{risk}."
            )
        else:
            family = ""
            text = (
                f"This is an interim report with {count(complete, 'complete seed')}, for which no "
                f"error rate was planned: its verdicts do not count before look {position + 1} of "
                f"{len(looks)}, with {looks[position]} seeds, which spends {share:.2%} of the "
                f"error rate of {ALPHA:.0%}."
            )
        lines = [f"{planned} {text}"]
    families = (
        (controls, "claim", "to beat every control"),
        (curves, "comparison", "of curves"),
        (matched, "comparison", "at equal learning"),
    )
    if others := [f"{count(number, kind)} {aim}" for number, kind, aim in families if number]:
        lines.append(
            f"Exploratory, {'each ' if len(others) > 1 else ''}a family of its own{family}: "
            f"{_join(others)}."
        )
    return [line.replace("%", " %") for line in lines]


def _lack(score: str) -> str:
    """Return why no cell of a scenario has a score of the question."""
    if causes := [need.cause for need in SCORE[score].needs if need.cause]:
        return f"No finished cell has this score: {causes[0]}."
    return "No finished cell has scores on two tasks."


def _describe(row: Row, verdict: str) -> str:
    if verdict in ("no verdict", "too few seeds"):
        why = f" ({row['why']})" if verdict == "no verdict" and row["why"] else ""
        return f"{row['method']}{why}"
    difference, low, high = (signed(row[name]) for name in INTERVAL)
    return f"{row['method']} {difference} ({low} to {high})"


def _difference(row: Row) -> str:
    """Return a difference with its interval and verdict."""
    at, *ends = ("" if row[name] != row[name] else signed(row[name]) for name in INTERVAL)
    interval = f" [{', '.join(ends)}]" if all(ends) else ""
    return f"{at}{interval} {mark(row['verdict'])}".strip() if row["primary"] else at + interval


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
