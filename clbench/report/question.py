"""The question of a run at a glance: a picture of the differences, and a table for a paper."""

from typing import Any

import pandas as pd

from clbench.suite.schema import MEAN, Question
from clbench.suite.scores import SCORE

_VERDICTS = ("better", "worse", "equivalent", "no difference shown", "no verdict")
MARKS = dict(zip(_VERDICTS, "▲▼=○?", strict=True))
"""Signs of the verdicts, for readers who see no colours."""


def mark(verdict: object) -> str:
    """Return the sign of a verdict."""
    return MARKS.get(str(verdict), MARKS["no verdict"])


def pictures(comparisons: pd.DataFrame, question: Question) -> list[dict[str, Any]]:
    """Return a panel for each scenario and score of the question, with its methods, best first.

    Positions are percentages of the width. All panels have one scale with 0 in the middle, from
    -`end` to `end`, and better is to the right.
    """
    table = comparisons[comparisons["primary"] & comparisons["difference"].notna()]
    ends = table[["difference", "difference_low", "difference_high"]].abs().max().max()
    end = 1.05 * max(0.0 if ends != ends else ends, question.margin)  # NaN without any row
    panels: dict[tuple[str, str], list[dict[Any, Any]]] = {}
    for row in table.to_dict("records"):
        sign = 1.0 if SCORE[row["score"]].higher_is_better else -1.0
        low, at, high = sorted(
            50.0 + 50.0 * sign * (row["difference"] if value != value else value) / end
            for value in (row["difference_low"], row["difference"], row["difference_high"])
        )
        row |= {"left": low, "at": at, "length": high - low, "mark": mark(row["verdict"])}
        panels.setdefault((row["scenario"], row["score"]), []).append(row)
    return [
        {
            "scenario": scenario,
            "title": f"{SCORE[score].label} − {question.reference}",
            "less": not SCORE[score].higher_is_better,
            "end": end,
            "margin": 50.0 * question.margin / end,
            "rows": sorted(rows, key=lambda row: -row["at"]),
        }
        for (scenario, score), rows in panels.items()
    ]


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
            cells[f"{label} − {question.reference}"] = _difference(row)
    frame = pd.DataFrame(list(rows.values())).fillna("")
    alone = len(frame) and frame["scenario"].nunique() == 1
    return frame.drop(columns="scenario") if alone else frame


def paper_note(question: Question, smoke: str) -> str:
    """Return the note under the table for a paper."""
    signs = ", ".join(f"{sign} {verdict}" for verdict, sign in MARKS.items())
    differences = f"difference from {question.reference}, seed by seed, with its interval"
    return f"{smoke} Mean ± standard deviation over seeds; {differences}. {signs}.".strip()


def _difference(row: dict[Any, Any]) -> str:
    """Return a difference with its interval and verdict, with true minus signs."""
    numbers = [row[name] for name in ("difference", "difference_low", "difference_high")]
    at, *ends = ("" if n != n else f"{round(n, 3) + 0.0:+.3f}".replace("-", "−") for n in numbers)
    interval = f" [{', '.join(ends)}]" if all(ends) else ""
    return f"{at}{interval} {mark(row['verdict'])}".strip() if row["primary"] else at + interval
