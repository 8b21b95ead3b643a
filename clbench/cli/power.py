"""`clbench power`."""

from pathlib import Path
from typing import Annotated

import typer

from clbench.cli.arguments import command
from clbench.cli.console import note, say, show_rows
from clbench.core.errors import RunFolderError, SettingsError
from clbench.core.options import Option
from clbench.results.store import Store
from clbench.suite.schema import FEWEST, MOST_SEEDS


@command
def power(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
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
    from clbench.report.content import read_runs
    from clbench.results.comparisons import comparisons_frame
    from clbench.results.statistics import ALPHA, power_frame, spend

    if not 0.0 < difference < 2.0:
        raise SettingsError(
            f"--difference {difference:g}: must be above 0 and below 2, such as .02."
        )
    if not 0.0 < power < 1.0:
        raise SettingsError(f"--power {power:g}: must be above 0 and below 1, such as .8.")
    store = Store(run)
    cells, notes = read_runs([store])
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
    return 0
