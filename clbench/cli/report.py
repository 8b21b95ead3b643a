"""`clbench report` and `clbench compare`."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from clbench.cli.arguments import Formats, ReportOut


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: ReportOut = None,
    formats: Formats = "png,svg,pdf",
) -> int:
    """Write a report of runs: a page that works offline, with figures and tables beside it.

    Also shows the table and renews scores.csv. Works while a run is going on, too. Files under
    cells/ that hold no cell are named and left out. Exit code 1 if there are failed cells.
    """
    return _report(runs, out, formats)


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="Folder of a run.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Folder of another.")],
    out: ReportOut = None,
    formats: Formats = "png,svg,pdf",
) -> int:
    """Write one report of two runs; methods that both have are told apart by the run's name."""
    from clbench.errors import SettingsError

    if run_a.resolve() == run_b.resolve():
        raise SettingsError(f"{run_a} is named twice. Name two runs.")
    return _report([run_a, run_b], out, formats)


def _report(runs: Sequence[Path], out: Path | None, formats: str) -> int:
    from clbench.cli.arguments import choice, words
    from clbench.cli.console import err
    from clbench.cli.console import out as stdout
    from clbench.cli.table import show_results
    from clbench.errors import RunFolderError, SettingsError
    from clbench.report.drawing import FORMATS
    from clbench.report.reading import read_runs
    from clbench.report.write import write_report
    from clbench.results.store import Store
    from clbench.results.table import scores_frame, to_csv

    chosen = [choice("--formats", name, FORMATS) for name in words("--formats", [formats]) or ()]
    if len({run.resolve() for run in runs}) < len(runs):
        raise SettingsError("RUN: one folder is named twice. Name each once.")
    cells, notes = read_runs([Store(run) for run in runs])
    gc.freeze()  # they stay to the end, so the collector need not go through them again and again
    if len(runs) == 1:
        try:
            Store(runs[0]).write_scores(to_csv(scores_frame(cells)))
        except RunFolderError as fault:
            # A run of somebody else's, or on a read-only disk, can be looked at all the same.
            err().print(f"scores.csv is left as it was: {fault}", soft_wrap=True)
    for line in notes:
        err().print(line, soft_wrap=True)
    code = show_results(runs[0] if len(runs) == 1 else None, cells)
    made = write_report(runs, out, formats=chosen, read=(cells, notes))
    stdout().print(f"Report: {made.page}", soft_wrap=True)
    return code
