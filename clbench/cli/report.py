"""`clbench report` and `clbench compare`."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from clbench.cli.arguments import choice, command
from clbench.cli.console import note, say
from clbench.cli.table import show_results
from clbench.core.errors import RunFolderError, SettingsError
from clbench.core.options import Option
from clbench.results.score_tables import scores_frame, to_csv
from clbench.results.store import Store, garbage_collection_paused

Out = Annotated[
    Path | None, Option("Folder of the report.", "DIR", default="report/ in the first run")
]
Formats = Annotated[Sequence[str], Option("File formats of the figures: png, svg, pdf.", "A,B")]


@command
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.")],
    out: Out = None,
    formats: Formats = ("png", "svg", "pdf"),
) -> int:
    """Write a report of runs: an offline page with figures and tables.

    Also prints the table of results and updates scores.csv. A run may still be in progress.
    Invalid files under cells/ are reported and left out. Exit code 1 if a cell failed.
    """
    return _report(runs, out, formats)


@command
def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="Folder of a run.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Folder of another run.")],
    out: Out = None,
    formats: Formats = ("png", "svg", "pdf"),
) -> int:
    """Write one report that compares two runs.

    A method that is in both runs is labelled with the name of its run.
    """
    return _report([run_a, run_b], out, formats)


def _report(runs: Sequence[Path], out: Path | None, formats: Sequence[str]) -> int:
    # These import pandas and matplotlib, for which --help should not wait.
    from clbench.report.content import read_runs
    from clbench.report.files import FORMATS, write_report

    kinds = [choice("--formats", name, FORMATS) for name in formats]
    resolved = [run.resolve() for run in runs]
    for number, run in enumerate(runs):
        if resolved[number] in resolved[:number]:
            raise SettingsError(f"{run} is named twice. Remove one.")
    with garbage_collection_paused():
        cells, notes = read_runs([Store(run) for run in runs])
        gc.freeze()  # all cells stay in memory, so later searches can skip them
    reference = Store(runs[0]).questions()[-1].reference
    if len(runs) == 1:
        try:
            Store(runs[0]).write_scores(to_csv(scores_frame(cells, reference)))
        except RunFolderError as error:
            # The run may be on a read-only disk; the report can go elsewhere.
            note(f"scores.csv is left unchanged: {error}")
    note(*notes)
    code = show_results(runs[0] if len(runs) == 1 else None, cells, reference)
    files = write_report(runs, out, formats=kinds, contents=(cells, notes))
    say(f"Report: {files.page}")
    return code
