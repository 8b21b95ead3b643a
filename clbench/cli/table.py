"""The table at the end of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.cli.console import out, plural
from clbench.results.cell import CellResult
from clbench.results.table import failures, scores_frame, summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 100
"""Columns of a terminal from which the costs are shown too."""

PAIR = (("p_o", "p_o"), ("p_s", "p_s"), ("forgetting", "forgetting"))
SEQUENCE = (("average", "average"), ("bwt", "BWT"))
FOOTNOTE = "* keeps rows of earlier tasks, which the other methods may not see"


def show_results(path: Path, cells: Sequence[CellResult]) -> int:
    """Print table, footnote and failures.

    Returns
    -------
    int
        The exit code: 1 if a cell failed, else 0.
    """
    console = out()
    frame = scores_frame(cells)
    rows = summary(frame).to_dict("records")
    if rows:
        console.print(results_table(rows, console))
        if any(row["keeps_rows"] for row in rows):
            console.print(FOOTNOTE)
    failed = failures(cells)
    for key, reason in failed:
        console.print(f"failed: {key}: {reason}", soft_wrap=True)
    if failed:
        console.print(
            f"{len(failed)} of {plural(len(cells), 'cell')} failed; the same command tries "
            f"{'it' if len(failed) == 1 else 'them'} again."
        )
    console.print(f"Scores: {path / 'scores.csv'}", soft_wrap=True)
    return 1 if failed else 0


def results_table(rows: Sequence[Mapping[Any, Any]], console: Console) -> Table:
    """Mean ± sample standard deviation over seeds; numbers are never cut, names may fold."""
    from rich import box
    from rich.table import Table

    # Python's own fallback for a terminal without UTF-8 would be an exception.
    unicode = (console.encoding or "").lower().startswith("utf")
    sign = "±" if unicode else "+/-"
    scores = list(PAIR)
    if any(row["seeds"] and math.isnan(row["p_o_mean"]) for row in rows):
        scores += SEQUENCE
    if any(not math.isnan(row["intransigence_mean"]) for row in rows):
        scores.append(("intransigence", "intrans."))
    table = Table(box=box.SIMPLE_HEAD if unicode else box.ASCII2, pad_edge=False, padding=(0, 1))
    table.add_column("scenario", overflow="fold")
    table.add_column("method", overflow="fold")
    for _, title in scores:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    costs = console.width >= WIDE
    if costs:
        table.add_column("train s", justify="right", no_wrap=True)
        table.add_column("peak MB", justify="right", no_wrap=True)
    before = None
    for row in rows:
        new = row["scenario"] != before
        if new and before is not None:
            table.add_section()
        before = row["scenario"]
        texts = [before if new else "", row["method"] + (" *" if row["keeps_rows"] else "")]
        texts += [_score(row, name, sign) for name, _ in scores]
        texts.append(f"{row['seeds']}" + (f" ({row['failed']} failed)" if row["failed"] else ""))
        if costs:
            texts += [_cost(row["train_seconds_mean"]), _cost(row["peak_memory_mb_mean"])]
        table.add_row(*texts)
    return table


def _score(row: Mapping[Any, Any], name: str, sign: str) -> str:
    mean, spread = row[f"{name}_mean"], row[f"{name}_std"]
    if math.isnan(mean):
        return "-"
    # Adding zero turns the -0.000 of rounding into 0.000.
    text = f"{round(mean, 3) + 0.0:.3f}"
    return text if math.isnan(spread) else f"{text} {sign}{spread:.3f}"


def _cost(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}" if value < 10 else f"{value:,.0f}"
