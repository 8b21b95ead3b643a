"""The table of results on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.cli.console import duration, out, show_table
from clbench.core.errors import count
from clbench.results.cell import CellResult
from clbench.results.score_tables import (
    MARKS,
    failures,
    has_value,
    marks,
    means,
    score_rows,
    visible_scores,
)
from clbench.suite.scores import Score

if TYPE_CHECKING:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

COSTS = {"train_seconds_mean": "train s", "training_memory_mb_mean": "memory MB"}


def show_results(path: Path | None, cells: Sequence[CellResult], reference: str = "vanilla") -> int:
    """Print the table of results, the costs of searches, and the failures.

    Returns the exit code: 1 if a cell failed, else 0. `path` is None for cells of several runs;
    `reference` is that of the question.
    """
    console = out()
    rows = means(score_rows(cells, reference))
    if rows:
        table = results_table(rows, console)
        # If no layout fits, lines run over the edge; numbers are never cut.
        console.width = max(console.width, _widths(table, console).minimum)
        show_table(console, table)
        console.print()
        for flag, (sign, text) in MARKS.items():
            if any(row[flag] for row in rows):
                console.print(f"{sign} {text}", soft_wrap=True)
    searches = {
        (cell.family or cell.baseline, cell.search["seconds"]): cell.search
        for cell in cells
        if cell.search
    }
    for (name, *_), cost in searches.items():
        trials = count(cost["trials"], "trial")
        console.print(
            f"{name}: the search for its settings took {trials}, {cost['epochs']:.4g} epochs and "
            f"{duration(cost['seconds'])}",
            soft_wrap=True,
        )
    failed = failures(cells)
    for key, reason in failed:
        console.print(f"failed: {key}: {reason}", soft_wrap=True)
    if failed:
        console.print(
            f"{len(failed)} of {count(len(cells), 'cell')} failed; repeat the command to retry."
        )
    if path is not None and (path / "scores.csv").exists():  # missing in a read-only folder
        console.print(f"Scores: {path / 'scores.csv'}", soft_wrap=True)
    return 1 if failed else 0


def results_table(rows: Sequence[Mapping[Any, Any]], console: Console) -> Table:
    """Return mean ± sample standard deviation over seeds in the widest layout that fits.

    As the window narrows, the table drops the costs, then puts scenarios on lines of their own,
    then drops shares such as ``retained``, then puts deviations below the means.
    """
    scores = visible_scores(rows)
    # Printing a sign that the terminal's encoding lacks would raise.
    sign = "±" if (console.encoding or "").lower().startswith("utf") else "+/-"
    order = list(dict.fromkeys(row["scenario"] for row in rows))
    rows = sorted(rows, key=lambda row: order.index(row["scenario"]))
    table = _layout(rows, scores, sign, costs=True)
    few = [score for score in scores if not score.ratio]
    narrower = (
        (False, False, scores),
        (True, False, scores),
        (True, False, few),
        (True, True, few),
    )
    for own_lines, below, shown in narrower:
        if _widths(table, console).maximum <= console.width:
            break
        table = _layout(rows, shown, sign, own_lines=own_lines, below=below)
    return table


def _layout(
    rows: Sequence[Mapping[Any, Any]],
    scores: Sequence[Score],
    sign: str,
    *,
    costs: bool = False,
    own_lines: bool = False,
    below: bool = False,
) -> Table:
    """Return the table with `costs`, scenarios on `own_lines`, or deviations `below` the means."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    if not own_lines:
        table.add_column("scenario", overflow="fold")
    table.add_column("method", overflow="fold")
    titles = [*(score.label for score in scores), "seeds"]
    cost_columns = {name: title for name, title in COSTS.items() if costs and has_value(rows, name)}
    for title in (*titles, *cost_columns.values()):
        table.add_column(title, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        scenario = "" if row["scenario"] == previous else row["scenario"]
        previous = row["scenario"]
        if own_lines and scenario:
            table.add_row(scenario)
        method = row["method"] + marks(flag for flag in MARKS if row[flag])
        texts = [f"  {method}"] if own_lines else [scenario, method]
        texts += [_score(row, score.name, sign, "\n" if below else " ") for score in scores]
        total = row["seeds"] + row["failed"]
        texts.append(f"{row['seeds']}/{total}" if row["failed"] else f"{total}")
        table.add_row(*texts, *(_cost(row[name]) for name in cost_columns))
    return table


def _widths(table: Table, console: Console) -> Measurement:
    """Return the minimum width of the table, and the width at which nothing wraps."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=10_000), table)


def _score(row: Mapping[Any, Any], name: str, sign: str, separator: str) -> str:
    mean, spread = row[f"{name}_mean"], row[f"{name}_std"]
    if math.isnan(mean):
        return "-"
    text = f"{round(mean, 3) + 0.0:.3f}"  # adding 0 turns -0.000 into 0.000
    return text if math.isnan(spread) else f"{text}{separator}{sign}{spread:.3f}"


def _cost(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}" if value < 10 else f"{value:,.0f}"
