"""`clbench report`, `compare` and `power`: what finished cells say."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from clbench.cli.arguments import argument, choice, command
from clbench.cli.console import note, say, show_results, show_rows
from clbench.core.errors import RunFolderError, SettingsError
from clbench.core.files import check_folder
from clbench.core.options import Option
from clbench.results.reading import garbage_collection_paused
from clbench.results.score_tables import scores_frame, to_csv
from clbench.results.store import Store
from clbench.suite.schema import FEWEST, MOST_SEEDS

Out = Annotated[
    Path | None, Option("Folder of the report.", "DIR", default="report/ in the first run")
]
Formats = Annotated[Sequence[str], Option("File formats of the figures: png, svg, pdf.", "A,B")]


@command
def report(
    runs: Annotated[list[Path], argument("RUN", "Run folders.")],
    out: Out = None,
    formats: Formats = ("png", "svg", "pdf"),
) -> int:
    """Write a report of runs: an offline page with figures and tables.

    Also prints the table of results, and updates scores.csv unless a cell behind it is missing or
    damaged. A run may still be in progress. Invalid files under cells/ are reported and left out.
    Exit code 1 if a cell failed, is damaged or is missing, single-task references included.
    """
    return _report(runs, out, formats)


@command
def compare(
    run_a: Annotated[Path, argument("RUN_A", "Folder of a run.")],
    run_b: Annotated[Path, argument("RUN_B", "Folder of another run.")],
    out: Out = None,
    formats: Formats = ("png", "svg", "pdf"),
) -> int:
    """Write one report that compares two runs.

    Seeds of a method are pooled if the runs have different ones and could share a folder. Otherwise
    the method of the second run is labelled with its name.
    """
    return _report([run_a, run_b], out, formats)


def _report(runs: Sequence[Path], out: Path | None, formats: Sequence[str]) -> int:
    # These import pandas and matplotlib, for which --help should not wait.
    from clbench.report.drawing import FORMATS
    from clbench.report.files import write_report
    from clbench.report.runs import read_runs

    kinds = [choice("--formats", name, FORMATS) for name in formats]
    resolved = [run.resolve() for run in runs]
    for number, run in enumerate(runs):
        if resolved[number] in resolved[:number]:
            raise SettingsError(f"{run} is named twice. Remove one.")
    stores = [Store(run) for run in runs]
    stamps = stores[0].stamps()
    with garbage_collection_paused():
        cells, notes, is_damaged = read_runs(stores)
        gc.freeze()  # all cells stay in memory, so later searches can skip them
    question = stores[0].questions()[-1]
    if len(runs) == 1 and not is_damaged:  # else the table would forget what is lost
        try:
            check_folder(runs[0])
            stores[0].write_scores(to_csv(scores_frame(cells, question.reference)), stamps)
        except RunFolderError as error:
            # The run may be a submission or on a read-only disk; the report can go elsewhere.
            note(f"scores.csv is left unchanged: {error}")
    note(*notes)
    code = show_results(runs[0] if len(runs) == 1 else None, cells, question)
    files = write_report(runs, out, formats=kinds, contents=(cells, notes))
    say(f"Report: {files.page}")
    return 1 if is_damaged else code


@command
def power(
    run: Annotated[Path, argument("RUN", "Folder of a run.")],
    difference: Annotated[
        float, Option("True difference from the reference to show, such as .02.", "X")
    ],
    power: Annotated[float, Option("Probability of showing it, between 0 and 1.", "SHARE")] = 0.8,
) -> int:
    """Say how many seeds show a difference, estimated from the spread of a run.

    Corrects for all primary comparisons of the run, as the report does, and for its looks, if it
    adds seeds. The ranges follow from the uncertainty of the spread, which is large with a handful
    of seeds.
    """
    # These import pandas, for which --help should not wait.
    from clbench.report.runs import read_runs
    from clbench.results.comparisons import comparisons_frame
    from clbench.results.power import power_frame
    from clbench.results.statistics import ALPHA, spend

    if not 0.0 < difference < 2.0:
        raise SettingsError(
            f"--difference {difference:g}: must be above 0 and below 2, such as .02."
        )
    if not 0.0 < power < 1.0:
        raise SettingsError(f"--power {power:g}: must be above 0 and below 1, such as .8.")
    store = Store(run)
    cells, notes, is_damaged = read_runs([store])
    note(*notes)
    question = store.questions()[-1]
    comparisons = comparisons_frame(cells, question)
    looks = store.looks()
    alpha = spend(looks)[-1] if looks else ALPHA
    rows = power_frame(comparisons, difference, power, alpha).to_dict("records")
    if not rows:
        raise RunFolderError(
            f"{run}: its question compares no method with {question.reference} on {FEWEST} seeds "
            "or more. Run more seeds, or change [question]."
        )

    numbers = ("seeds so far", "spread", "seeds needed", "95 % range")

    def text(seeds: int | None) -> str:
        return f"> {MOST_SEEDS}" if seeds is None else str(seeds)

    show_rows(
        [
            (
                *(row[name] for name in ("scenario", "method", "score")),
                f"{row['pairs']:.0f}",
                f"{row['spread']:.3f}",
                text(row["seeds"]),
                f"{text(row['seeds_low'])} to {text(row['seeds_high'])}",
            )
            for row in rows
        ],
        ("scenario", "method", "score", *numbers),
        right=numbers,
        unbroken=0,
    )
    most = [
        text(None if None in values else max(values))
        for values in ([row[name] for row in rows] for name in ("seeds", "seeds_low", "seeds_high"))
    ]
    say(
        f"\nA difference of {difference:g} is shown with probability {power:g} in each of these "
        f"{len(rows)} comparisons, at {100 * alpha:.3g} % error for all of them"
        f"{' (the share of the last look)' if looks else ''}, with {most[0]} seeds ({most[1]} to "
        f"{most[2]}){'' if looks else ' in a run without looks'}."
    )
    return int(is_damaged)
