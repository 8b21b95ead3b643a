"""Write the tables of ``docs/findings-pairs.md`` and its figure from the cells of the studies.

python -m tools.findings
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from clbench.results.cell import CellResult, step_of_mean, steps_by_scenario
from clbench.results.comparisons import comparisons_frame
from clbench.results.overall import Values, overall_frame, paired_table, scores_by_baseline
from clbench.results.score_tables import score_rows
from clbench.results.statistics import Comparison, Differences, Floats, compare, hidden_gap
from clbench.results.store import Store
from clbench.suite.baselines import read_baseline
from clbench.suite.schema import Question
from clbench.suite.sweeps import own_values
from tools.findings_figures import Mark, forest, mark

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "findings-pairs.md", ROOT / "docs" / "findings-by-scenario.md")
FIGURE = ROOT / "docs" / "figures" / "findings-pairs.svg"
REFERENCE = ROOT / "results" / "reference"
PRETRAINING = REFERENCE / "findings-pretraining"
SCORES = ("p_o", "p_s")
TITLES = {"p_o": "old task (p_o)", "p_s": "new task (p_s)"}


class Study(NamedTuple):
    """A run of the papers' methods and their controls on one model.

    `name` begins the names of its tables; `label` names the model in the figure. `tuning` holds the
    tuned baselines. Methods with fewer than `fewest` cells are left out; by default those that lack
    a scenario or seed that another has.
    """

    name: str
    label: str
    folder: Path
    tuning: Path
    fewest: int | None = None

    @cache  # noqa: B019 - there are few
    def read(self) -> tuple[list[CellResult], Question]:
        """Return its cells and its question."""
        store = Store(self.folder)
        cells = store.read().cells
        blocks = Counter(cell.baseline for cell in cells)
        fewest = self.fewest or max(blocks.values())
        return [c for c in cells if blocks[c.baseline] >= fewest], store.questions()[-1]


STUDIES = (
    Study("minilm", "MiniLM", REFERENCE / "findings-minilm", REFERENCE / "findings-minilm-tune"),
    Study("tiny", "built-in model", REFERENCE / "findings", REFERENCE / "findings-tune"),
)


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


def claims_of(cells: Sequence[CellResult], claims: Sequence[Claim] = CLAIMS) -> list[Claim]:
    """Return the claims whose two methods a study has."""
    methods = {cell.baseline for cell in cells}
    return [claim for claim in claims if {*claim} <= methods]


def mean_and_gap(
    scenarios: Sequence[str], table: Floats, steps: Mapping[str, float]
) -> tuple[Differences, float]:
    """Return differences of means over scenarios, and the smallest gap of collapses they hide.

    `table` has the shape (seeds, scenarios).
    """
    columns = zip(scenarios, table.T, strict=True)
    gap = hidden_gap((Differences(tuple(x), steps[s]) for s, x in columns), len(scenarios))
    return Differences(tuple(table.mean(1)), step_of_mean(scenarios, steps)), gap


def answers(
    cells: Sequence[CellResult],
    margin: float,
    claims: Sequence[Claim] = CLAIMS,
    scores: Sequence[str] = SCORES,
    family: int | None = None,
) -> dict[tuple[Claim, str], Comparison]:
    """Return a comparison of means over all scenarios for each claim and score, as one family.

    `family` is its size; by default the comparisons made.
    """
    steps, rows = steps_by_scenario(cells), score_rows(cells)
    claims = claims_of(cells, claims)
    groups: dict[tuple[str, str], dict[str, Differences]] = {}
    gaps: dict[tuple[str, str], float] = {}
    for score in scores:
        values = scores_by_baseline(rows, score)
        for method, reference in claims:
            scenarios, _, table = paired_table(values[method], values[reference])
            sum_steps = {
                s: math.hypot(*(steps[s].get(each, 0.0) for each in SCORES)) for s in steps
            }
            sizes = {name: steps[name].get(score, sum_steps[name]) for name in scenarios}
            sample, gap = mean_and_gap(scenarios, table, sizes)
            group = reference, score
            groups.setdefault(group, {})[method] = sample
            gaps[group] = min(gap, gaps.get(group, math.inf))
    comparisons = compare(groups, family=family, margin=margin, known_gaps=gaps)
    return {
        (claim, score): comparisons[(claim.reference, score), claim.method]
        for claim in claims
        for score in scores
    }


def claims_table(cells: Sequence[CellResult], question: Question) -> str:
    """Return a Markdown table of the claims with their verdicts."""
    comparisons = answers(cells, question.margin)
    rows = []
    for claim in claims_of(cells):
        texts = [f"`{claim.method}` − `{claim.reference}`"]
        for score in SCORES:
            answer = comparisons[claim, score]
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
    """Return a difference with its interval, and the verdict if it is one or is withheld."""
    text = interval(row["difference"], row["difference_low"], row["difference_high"])
    has_verdict = row["verdict"] in ("better", "worse", "equivalent", "no verdict")
    return f"{text} {row['verdict']}" if has_verdict else text


def interval(value: float, low: float, high: float) -> str:
    """Return ``+.012 [−.003, +.027]``; an end next to 0 that excludes it gets a fourth digit.

    Without an interval, as where there is no verdict, the value stands alone.
    """
    if math.isnan(low):
        return signed(value)
    ends = [
        signed(end) if abs(end) >= 0.0005 or low * high <= 0 else signed(end, 4)
        for end in (low, high)
    ]
    return f"{signed(value)} [{', '.join(ends)}]"


def more(found: Comparison) -> str:
    """Return how much more one has than the other, with its interval, as ``.012 [−.003, .027]``."""
    return _unsigned(found.difference, found.difference_low, found.difference_high)


def less(found: Comparison) -> str:
    """Return how much less one has than the other, like `more`."""
    return _unsigned(-found.difference, -found.difference_high, -found.difference_low)


def _unsigned(value: float, low: float, high: float) -> str:
    ends = (plain(e, 3 if abs(e) >= 0.0005 or low * high <= 0 else 4) for e in (low, high))
    return f"{plain(value)} [{', '.join(ends)}]"


def plain(value: float, digits: int = 3) -> str:
    """Return ``.512``."""
    return re.sub(r"^(−?)0\.", r"\1.", f"{value:.{digits}f}".replace("-", "−"))


def signed(value: float, digits: int = 3) -> str:
    """Return ``+.012``, ``−.012``, or ``.000`` without a sign."""
    text = plain(abs(value), digits)
    return text if not text.strip(".0") else f"{'−' if value < 0 else '+'}{text}"


def setting(value: Any) -> str:
    """Return a setting's value with six digits, or a word as it is."""
    return str(value) if isinstance(value, str | bool) else f"{value:g}"


def settings_table(study: Study) -> str:
    """Return a Markdown table of the tuned settings of a study's methods, and of the defaults."""
    cells, _ = study.read()
    rows = []
    for name in dict.fromkeys(cell.baseline for cell in cells):
        path = study.tuning / f"{name}.toml"
        tuned = read_baseline(str(path)) if path.exists() else None
        if tuned and tuned.cost:  # tuned itself
            before = own_values(read_baseline(name))
            texts = [
                f"`{key}` {setting(value)}"
                + ("" if value == before[key] else f" ({setting(before[key])})")
                for key, value in own_values(tuned).items()
            ]
            rows.append([f"`{name}`", ", ".join(texts), str(tuned.cost.trials)])
    return table(["method", "tuned settings (default)", "trials"], rows)


KEPT = ("masked LM", "old task", "new task")
"""Tasks of a scenario of `PRETRAINING`."""


def kept(
    cells: Sequence[CellResult], question: Question
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], Comparison]]:
    """Return what is kept of each task of `KEPT`, and differences from the reference.

    Both have the task and the method as keys. Scores are means over the scenarios; the differences
    are one family.
    """
    methods = list(dict.fromkeys(cell.baseline for cell in cells))
    parts = {cell.scenario: cell.scenario_report["parts"] for cell in cells}
    groups: dict[str, dict[str, Differences]] = {}
    gaps: dict[str, float] = {}
    means: dict[tuple[str, str], float] = {}
    for task, title in enumerate(KEPT):
        values: Values = {}
        for cell in cells:
            by_scenario = values.setdefault(cell.baseline, {})
            end = np.array(cell.R[-1], np.float64)  # NaN where there is no score
            by_scenario.setdefault(cell.scenario, {})[cell.seed] = float(end[task])
        for method in methods:
            everything = [x for seeds in values[method].values() for x in seeds.values()]
            means[title, method] = fmean(everything)
            scenarios, _, differences = paired_table(values[method], values[question.reference])
            steps = dict.fromkeys(scenarios, 0.0)  # of thousands of tokens
            if task:
                steps = {name: 1 / parts[name][task - 1]["validation"] for name in scenarios}
            if method != question.reference:
                sample, gap = mean_and_gap(scenarios, differences, steps)
                groups.setdefault(title, {})[method] = sample
                gaps[title] = min(gap, gaps.get(title, math.inf))
    return means, compare(groups, margin=question.margin, known_gaps=gaps)


def kept_table(cells: Sequence[CellResult], question: Question) -> str:
    """Return a Markdown table of what is kept of the pretraining and of each task."""
    means, comparisons = kept(cells, question)
    rows = []
    for method in dict.fromkeys(cell.baseline for cell in cells):
        texts = [f"`{method}`"]
        for title in KEPT:
            row = comparisons.get((title, method))
            text = "" if row is None else compared(pd.Series(asdict(row)))
            texts += [plain(means[title, method]), text]
        rows.append(texts)
    return table(["method", *(text for title in KEPT for text in (title, "difference"))], rows)


def tables() -> dict[str, str]:
    """Return the tables of the pages by name."""
    contents = {"kept": kept_table(Store(PRETRAINING).read().cells, Question())}
    for study in STUDIES:
        cells, question = study.read()
        contents |= {
            f"{study.name}-claims": claims_table(cells, question),
            f"{study.name}-overall": overall_table(cells, question),
            f"{study.name}-forgetting": forgetting_table(cells, question),
            f"{study.name}-settings": settings_table(study),
        }
        for scenario in dict.fromkeys(cell.scenario for cell in cells):
            contents[f"{study.name}-{scenario}"] = scenario_table(cells, question, scenario)
    return contents


def claims_figure(studies: Sequence[Study]) -> Figure:
    """Draw the claims of each study on the old and on the new task."""
    panels: dict[str, dict[str, dict[str, Mark]]] = {title: {} for title in TITLES.values()}
    for study in studies:
        cells, question = study.read()
        for (claim, score), answer in answers(cells, question.margin).items():
            rows = panels[TITLES[score]].setdefault(study.label, {})
            rows[f"{claim.method} − {claim.reference}"] = mark(answer)
    caption = "Differences of mean scores over six scenarios."
    return forest(panels, caption, margin=question.margin)


def filled(
    page: str, contents: Mapping[str, str], values: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return a page with the given tables, and values in its sentences.

    Tables stand between ``<!-- NAME -->`` and ``<!-- end -->``, values between ``<!--=NAME-->`` and
    ``<!--/-->``.
    """

    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{contents[match[1]]}\n\n<!-- end -->"

    def value(match: re.Match[str]) -> str:
        return f"<!--={match[1]}-->{values[match[1]]}<!--/-->"

    page = re.sub(r"<!--=([^>]+)-->.*?<!--/-->", value, page, flags=re.DOTALL)
    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)


def write(
    pages: Sequence[Path],
    contents: Mapping[str, str],
    figure: Path,
    drawn: Figure,
    values: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write tables and values into the pages, and a figure."""
    for page in pages:
        text = filled(page.read_text(encoding="utf-8"), contents, values)
        page.write_text(text, encoding="utf-8")
    with matplotlib.rc_context({"svg.hashsalt": "clbench"}):
        drawn.savefig(figure, metadata={"Date": None})


def main() -> None:
    """Write the tables into the pages, and the figure."""
    write(PAGES, tables(), FIGURE, claims_figure(STUDIES))


if __name__ == "__main__":
    main()
