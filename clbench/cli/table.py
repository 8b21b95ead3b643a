"""The table at the end of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.cli.console import duration, out, plural, show_table
from clbench.results.cell import CellResult
from clbench.results.table import failures, scores_frame, summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PAIR = (("p_o", "p_o"), ("p_s", "p_s"), ("forgetting", "forgetting"))
SEQUENCE = (("average", "average"), ("bwt", "BWT"))
FOOTNOTE = "* keeps rows of earlier tasks, which the other methods may not see"


def show_results(path: Path | None, cells: Sequence[CellResult]) -> int:
    """Print table, footnote and failures.

    Parameters
    ----------
    path
        The folder of the run whose cells they are; None for those of several.
    cells
        Finished and failed ones.

    Returns
    -------
    int
        The exit code: 1 if a cell failed, else 0.
    """
    console = out()
    frame = scores_frame(cells)
    rows = summary(frame).to_dict("records")
    if rows:
        table = results_table(rows, console)
        # Too narrow for any layout: lines run over the edge, rather than numbers being cut.
        console.width = max(console.width, _width(table, console, least=True))
        show_table(console, table)
        console.print()
        if any(row["keeps_rows"] for row in rows):
            console.print(FOOTNOTE)
    for line in searches(cells):
        console.print(line, soft_wrap=True)
    failed = failures(cells)
    for key, reason in failed:
        console.print(f"failed: {key}: {reason}", soft_wrap=True)
    if failed:
        console.print(
            f"{len(failed)} of {plural(len(cells), 'cell')} failed; the same command tries "
            f"{'it' if len(failed) == 1 else 'them'} again."
        )
    if path is not None and (path / "scores.csv").exists():  # not in a folder that can only be read
        console.print(f"Scores: {path / 'scores.csv'}", soft_wrap=True)
    return 1 if failed else 0


def searches(cells: Sequence[CellResult]) -> list[str]:
    """A line for each baseline whose settings took a search, with its cost."""
    costs = {cell.baseline: cell.search for cell in cells if cell.search}
    return [
        f"{name}: finding its settings took {plural(int(cost['trials'] or 0), 'trial')}, "
        f"{cost['epochs']:g} epochs and {duration(cost['seconds'] or 0.0)} before"
        for name, cost in costs.items()
    ]


def results_table(rows: Sequence[Mapping[Any, Any]], console: Console) -> Table:
    """Mean ± sample standard deviation over seeds, in the widest layout that fits.

    Where the window is too narrow for everything, first the costs go, then scenarios become
    lines of their own, then deviations stand below the means; numbers are never cut.
    """
    scores = list(PAIR)
    if any(row["tasks"] > 2 for row in rows):
        scores += SEQUENCE
    if any(not math.isnan(row["intransigence_mean"]) for row in rows):
        scores.append(("intransigence", "intrans."))
    # Python's own answer to a sign that the terminal cannot show would be an exception.
    sign = "±" if (console.encoding or "").lower().startswith("utf") else "+/-"
    order = list(dict.fromkeys(row["scenario"] for row in rows))
    rows = sorted(rows, key=lambda row: order.index(row["scenario"]))
    table = _layout(rows, scores, sign, costs=True)
    for costs, apart, below in ((False, False, False), (False, True, False), (False, True, True)):
        if _width(table, console) <= console.width:
            break
        table = _layout(rows, scores, sign, costs=costs, apart=apart, below=below)
    return table


def _layout(
    rows: Sequence[Mapping[Any, Any]],
    scores: Sequence[tuple[str, str]],
    sign: str,
    *,
    costs: bool,
    apart: bool = False,
    below: bool = False,
) -> Table:
    """One layout: with costs or not, scenarios as lines `apart`, deviations `below`."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    if not apart:
        table.add_column("scenario", overflow="fold")
    table.add_column("method", overflow="fold")
    titles = [title for _, title in scores] + ["seeds"]
    for title in [*titles, "train s", "memory MB"] if costs else titles:
        table.add_column(title, justify="right", no_wrap=True)
    before = None
    for row in rows:
        new = row["scenario"] != before
        before = row["scenario"]
        method = row["method"] + (" *" if row["keeps_rows"] else "")
        if apart and new:
            table.add_row(before)
        first = [f"  {method}"] if apart else [before if new else "", method]
        texts = [_score(row, name, sign, "\n" if below else " ") for name, _ in scores]
        every = row["seeds"] + row["failed"]
        texts.append(f"{row['seeds']}/{every}" if row["failed"] else f"{every}")
        if costs:
            texts += [_cost(row["train_seconds_mean"]), _cost(row["training_memory_mb_mean"])]
        table.add_row(*first, *texts)
    return table


def _width(table: Table, console: Console, *, least: bool = False) -> int:
    """Columns that the table takes when nothing is folded, or at least takes."""
    from rich.measure import Measurement

    needed = Measurement.get(console, console.options.update(max_width=10_000), table)
    return needed.minimum if least else needed.maximum


def _score(row: Mapping[Any, Any], name: str, sign: str, between: str) -> str:
    mean, spread = row[f"{name}_mean"], row[f"{name}_std"]
    if math.isnan(mean):
        return "-"
    # Adding zero turns the -0.000 of rounding into 0.000.
    text = f"{round(mean, 3) + 0.0:.3f}"
    return text if math.isnan(spread) else f"{text}{between}{sign}{spread:.3f}"


def _cost(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}" if value < 10 else f"{value:,.0f}"
