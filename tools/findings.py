"""Print the tables of ``docs/findings.md`` from the cells of a run.

python -m tools.findings results/reference/findings
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from clbench.results.cell import CellResult
from clbench.results.comparisons import comparisons_frame
from clbench.results.overall import overall_frame
from clbench.results.store import Store
from clbench.suite.question import Question

SCORES = ("p_o", "p_s")


def scenario_tables(cells: Sequence[CellResult], question: Question) -> dict[str, str]:
    """Return a Markdown table of means and differences from the reference by scenario."""
    comparisons = comparisons_frame(cells, question)
    tables = {}
    for scenario, rows in comparisons.groupby("scenario", sort=False):
        by_key = {(row["method"], row["score"]): row for row in rows.to_dict("records")}
        lines = [
            f"| method | p_o | p_s | p_o − {question.reference} | p_s − {question.reference} |",
            "|---|---|---|---|---|",
        ]
        for method in dict.fromkeys(rows["method"]):
            both = [by_key[method, score] for score in SCORES]
            means = [plain(row["mean"]) for row in both]
            differences = ["" if method == question.reference else compared(row) for row in both]
            lines.append(f"| {' | '.join([f'`{method}`', *means, *differences])} |")
        tables[str(scenario)] = "\n".join(lines)
    return tables


def overall_table(cells: Sequence[CellResult], question: Question) -> str:
    """Return a Markdown table of the mean differences over all scenarios, and of mean ranks."""
    frame = overall_frame(cells, question.reference, SCORES)
    lines = [
        "| method | " + " | ".join(f"{s} | rank in {s}" for s in SCORES) + " |",
        "|---|---|---|---|---|",
    ]
    by_key = {(row["method"], row["score"]): row for row in frame.to_dict("records")}
    for method in dict.fromkeys(frame["method"]):
        texts = [f"`{method}`"]
        for score in SCORES:
            row = by_key[method, score]
            is_reference = method == question.reference
            texts += ["" if is_reference else interval(row["difference"], row["low"], row["high"])]
            texts += [f"{row['mean_rank']:.1f}"]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def compared(row: dict[Any, Any]) -> str:
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
    return "" if pd.isna(value) else f"{value:.3f}".replace("0.", ".", 1)


def signed(value: float) -> str:
    """Return ``+.012`` or ``−.012``."""
    return f"{value:+.3f}".replace("0.", ".", 1).replace("-", "−")


def main() -> None:
    """Print the tables of the run in the folder given on the command line."""
    store = Store(Path(sys.argv[1]))
    cells, question = store.read().cells, store.questions()[-1]
    tables = {**scenario_tables(cells, question), "All scenarios": overall_table(cells, question)}
    sys.stdout.write("\n".join(f"### {name}\n\n{table}\n" for name, table in tables.items()))


if __name__ == "__main__":
    main()
