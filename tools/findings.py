"""Write the tables of ``docs/findings.md`` and its figure from the cells of the study.

python -m tools.findings
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from clbench.figures import style
from clbench.results.cell import CellResult
from clbench.results.comparisons import comparisons_frame, step_of_mean, steps_by_scenario
from clbench.results.overall import overall_frame, paired_table, scores_by_method
from clbench.results.statistics import Comparison, Differences, compare
from clbench.results.store import Store
from clbench.suite.question import Question

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings.md"
FIGURE = ROOT / "docs" / "figures" / "findings.svg"
STUDY = ROOT / "results" / "reference" / "findings"
SCORES = ("p_o", "p_s")


class Claim(NamedTuple):
    """A comparison of two methods that answers a question of the page."""

    method: str
    reference: str


CLAIMS = (
    Claim("bertcl-combined", "low-rate"),
    Claim("bertcl-published", "low-rate-published"),
    Claim("bertcl-published", "vanilla"),
    Claim("ewc-mlm", "vanilla"),
    Claim("ewc", "vanilla"),
    Claim("recadam", "vanilla"),
    Claim("recadam", "low-rate-recadam"),
)


def answers(
    cells: Sequence[CellResult], margin: float, claims: Sequence[Claim] = CLAIMS
) -> dict[tuple[Claim, str], Comparison]:
    """Return a comparison of means over all scenarios for each claim and score, as one family."""
    steps = steps_by_scenario(cells)
    groups: dict[tuple[str, str], dict[str, Differences]] = {}
    for score in SCORES:
        values = scores_by_method(cells, score)
        for method, reference in claims:
            scenarios, _, table = paired_table(values[method], values[reference])
            step = step_of_mean(scenarios, {name: steps[name][score] for name in scenarios})
            some = groups.setdefault((reference, score), {})
            some[method] = Differences(tuple(table.mean(1)), step)
    found = compare(groups, margin=margin)
    return {
        (claim, score): found[(claim.reference, score), claim.method]
        for claim in claims
        for score in SCORES
    }


def claims_table(cells: Sequence[CellResult], question: Question) -> str:
    """Return a Markdown table of the claims with their verdicts."""
    found = answers(cells, question.margin)
    rows = []
    for claim in CLAIMS:
        texts = [f"`{claim.method}` − `{claim.reference}`"]
        for score in SCORES:
            answer = found[claim, score]
            low, high = answer.difference_low, answer.difference_high
            texts += [interval(answer.difference, low, high), answer.verdict]
        rows.append(texts)
    return table(["difference", "p_o", "", "p_s", ""], rows)


def overall_table(cells: Sequence[CellResult], question: Question) -> str:
    """Return a Markdown table of the mean differences over all scenarios, and of mean ranks."""
    frame = overall_frame(cells, question.reference, SCORES).set_index(["method", "score"])
    rows = []
    for method in dict.fromkeys(frame.index.get_level_values("method")):
        texts = [f"`{method}`"]
        for score in SCORES:
            row = frame.loc[(method, score)]
            is_reference = method == question.reference
            texts += ["" if is_reference else interval(row["difference"], row["low"], row["high"])]
            texts += [f"{row['mean_rank']:.1f}"]
        rows.append(texts)
    return table(["method", "p_o", "rank", "p_s", "rank"], rows)


def scenario_table(cells: Sequence[CellResult], question: Question, scenario: str) -> str:
    """Return a Markdown table of means and differences from the reference in one scenario."""
    frame = comparisons_frame(cells, question)
    frame = frame[frame["scenario"] == scenario].set_index(["method", "score"])
    rows = []
    for method in dict.fromkeys(frame.index.get_level_values("method")):
        both = [frame.loc[(method, score)] for score in SCORES]
        is_reference = method == question.reference
        differences = ["" if is_reference else compared(row) for row in both]
        rows.append([f"`{method}`", *(plain(row["mean"]) for row in both), *differences])
    reference = question.reference
    return table(["method", "p_o", "p_s", f"p_o − {reference}", f"p_s − {reference}"], rows)


def forgetting_table(cells: Sequence[CellResult], question: Question) -> str:
    """Return a Markdown table of what the reference forgets in each scenario."""
    frame = comparisons_frame(cells, question)
    frame = frame[(frame["method"] == question.reference) & (frame["score"] == "forgetting")]
    rows = []
    for row in frame.to_dict("records"):
        part = next(c for c in cells if c.scenario == row["scenario"]).scenario_report["parts"][0]
        texts = [f"`{row['scenario']}`", str(part["validation"])]
        rows.append([*texts, interval(row["mean"], row["low"], row["high"])])
    return table(["scenario", "rows of D_o scored", "forgotten by `vanilla`"], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def compared(row: pd.Series[Any]) -> str:
    """Return a difference with its interval, and the verdict if it is one."""
    text = interval(row["difference"], row["difference_low"], row["difference_high"])
    return (
        f"{text} {row['verdict']}" if row["verdict"] in ("better", "worse", "equivalent") else text
    )


def interval(value: float, low: float, high: float) -> str:
    """Return ``+.012 [−.003, +.027]``."""
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"


def plain(value: float) -> str:
    """Return ``.512``."""
    return f"{value:.3f}".replace("0.", ".", 1)


def signed(value: float) -> str:
    """Return ``+.012`` or ``−.012``."""
    return f"{value:+.3f}".replace("0.", ".", 1).replace("-", "−")


def tables(folder: Path = STUDY) -> dict[str, str]:
    """Return the tables of the page by name."""
    store = Store(folder)
    cells, question = store.read().cells, store.questions()[-1]
    scenarios = dict.fromkeys(cell.scenario for cell in cells)
    return {
        "claims": claims_table(cells, question),
        "overall": overall_table(cells, question),
        "forgetting": forgetting_table(cells, question),
        **{name: scenario_table(cells, question, name) for name in scenarios},
    }


def claims_figure(cells: Sequence[CellResult], question: Question) -> Figure:
    """Draw the claims: differences with their intervals, filled where there is a verdict."""
    found = answers(cells, question.margin)
    figure, grid = style.panels(len(SCORES), width=4.6, height=0.3 * len(CLAIMS) + 0.4, columns=2)
    for axes, score in zip(grid, SCORES, strict=True):
        for position, claim in enumerate(reversed(CLAIMS)):
            answer = found[claim, score]
            ends = [answer.difference_low, answer.difference_high]
            told = answer.verdict in ("better", "worse", "equivalent")
            color = style.BLACK if told else style.GREY
            axes.plot(ends, [position] * 2, "-", lw=2, color=color)
            face = color if told else "white"
            axes.plot([answer.difference], [position], "o", ms=6, color=color, mfc=face)
        axes.axvline(0.0, lw=0.8, color=style.GREY, zorder=0)
        axes.axvspan(-question.margin, question.margin, color=style.GREY, alpha=0.15, lw=0)
        names = [f"{claim.method} − {claim.reference}" for claim in reversed(CLAIMS)]
        axes.set_yticks(range(len(CLAIMS)), names if score == SCORES[0] else [""] * len(CLAIMS))
        axes.set_ylim(-0.6, len(CLAIMS) - 0.4)
        axes.grid(axis="x", lw=0.4, alpha=0.6)
        axes.set_title({"p_o": "old task (p_o)", "p_s": "new task (p_s)"}[score], fontsize="medium")
    return style.captioned(figure, "Differences of mean scores over six scenarios.")


def filled(page: str, contents: dict[str, str]) -> str:
    """Return a page whose parts ``<!-- NAME -->`` to ``<!-- end -->`` hold the given tables."""

    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{contents[match[1]]}\n\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)


def main() -> None:
    """Write the tables into the page, and the figure."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    store = Store(STUDY)
    with matplotlib.rc_context({"svg.hashsalt": "clbench"}):
        claims_figure(store.read().cells, store.questions()[-1]).savefig(
            FIGURE, metadata={"Date": None}
        )


if __name__ == "__main__":
    main()
