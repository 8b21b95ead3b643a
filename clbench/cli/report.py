"""`clbench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
) -> int:
    """Show a run's table; write its scores.csv, and change nothing else.

    Works while the run is going on, too. Files under cells/ that hold no cell are named and left
    out. Exit code 1 if the run has failed cells.
    """
    from clbench.cli.console import err
    from clbench.cli.table import show_results
    from clbench.errors import RunFolderError
    from clbench.results.store import Store
    from clbench.results.table import scores_frame, to_csv

    store = Store(run)
    store.require()
    found = store.read()
    for line in found.broken_lines(()):
        err().print(line, soft_wrap=True)
    if not found.cells:
        raise RunFolderError(f"{run} holds no finished cell yet.")
    try:
        store.write_scores(to_csv(scores_frame(found.cells)))
    except RunFolderError as fault:
        # A run of somebody else's, or on a read-only disk, can be looked at all the same.
        err().print(f"scores.csv is left as it was: {fault}", soft_wrap=True)
    return show_results(run, found.cells)
