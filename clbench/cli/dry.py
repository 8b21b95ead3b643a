"""`clbench run --dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clbench.cli.console import err, out, plural, show_table
from clbench.cli.estimate import from_finished, from_sizes
from clbench.results.conflicts import conflicts
from clbench.results.store import Store

if TYPE_CHECKING:
    from clbench.suite.plan import Plan


def show_plan(plan: Plan, *, replace: bool) -> None:
    """Print the cells of a plan, what is known of each, and an estimate; write nothing.

    Raises
    ------
    RunFolderError
        If the run would stop because of what is in the folder.
    """
    from rich.table import Table

    from clbench.suite.plan import validate

    store = Store(plan.out)
    store.check(plan.suite.name)
    found = store.read()
    notes = err()
    for line in found.broken_lines({cell.key for cell in plan.cells}):
        notes.print(line, soft_wrap=True)
    replaced = {c.cell.key for c in conflicts(plan.cells, found.cells)} if replace else set()
    present = [cell for cell in found.cells if cell.key not in replaced]
    finished = store.finished(plan.cells, present=present)
    failed = {cell.key for cell in present if cell.status == "failed"}
    pending = [cell for cell in plan.cells if cell.key not in finished]
    validate(plan, pending)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("cell", "state"):
        table.add_column(title, overflow="fold")
    for cell in plan.cells:
        state = "finished" if cell.key in finished else "to run"
        if cell.key in failed:
            state = "failed before, to run again"
        elif cell.key in replaced:
            state = "finished with other settings, to run again"
        table.add_row(cell.key, state)
    console = out()
    show_table(console, table)
    console.print(
        f"{plural(len(plan.cells), 'cell')}, {len(pending)} to run, results in {plan.out}",
        soft_wrap=True,
    )
    if pending:
        estimate = from_finished(pending, found.cells) or from_sizes(plan, pending)
        console.print(f"Estimate: {estimate}.", soft_wrap=True)
