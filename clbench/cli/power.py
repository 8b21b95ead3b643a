"""`clbench power`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clbench.cli.arguments import option


def power(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    difference: Annotated[
        float, option("X", "True difference from the reference to show, such as .02.")
    ],
    share: Annotated[
        float, option("SHARE", "Probability of showing it, between 0 and 1.", "--power")
    ] = 0.8,
) -> int:
    """Say how many seeds show a difference, estimated from the spread of a run.

    Corrects for all primary comparisons of the run, as the report does, and for its looks, if it
    adds seeds. The ranges follow from the
    uncertainty of the spread, which is large with a handful of seeds.
    """
    from rich.table import Table

    from clbench.cli.console import err, out, show_table
    from clbench.core.errors import RunFolderError, SettingsError
    from clbench.report.reading import read_runs
    from clbench.results.comparisons import comparisons_frame
    from clbench.results.statistics import ALPHA, power_frame, spend
    from clbench.results.store import Store
    from clbench.suite.question import FEWEST, MOST_SEEDS

    if not 0.0 < difference < 2.0:
        raise SettingsError(
            f"--difference {difference:g}: must be above 0 and below 2, such as .02."
        )
    if not 0.0 < share < 1.0:
        raise SettingsError(f"--power {share:g}: must be above 0 and below 1, such as .8.")
    store = Store(run)
    cells, notes = read_runs([store])
    for line in notes:
        err().print(line, soft_wrap=True)
    question = store.questions()[-1]
    comparisons = comparisons_frame(cells, question)
    looks = store.looks()
    alpha = spend(looks)[-1] if looks else ALPHA
    rows = power_frame(comparisons, difference, share, alpha).to_dict("records")
    if not rows:
        raise RunFolderError(
            f"{run}: its question compares no method with {question.reference} on {FEWEST} seeds "
            "or more. Run more seeds, or change [question]."
        )

    def text(seeds: int | None) -> str:
        return f"> {MOST_SEEDS}" if seeds is None else str(seeds)

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for title in ("scenario", "method", "score"):
        table.add_column(title, overflow="fold")
    for title in ("seeds so far", "spread", "seeds needed", "95 % range"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(row[name] for name in ("scenario", "method", "score")),
            f"{row['pairs']:.0f}",
            f"{row['spread']:.3f}",
            text(row["seeds"]),
            f"{text(row['seeds_low'])} to {text(row['seeds_high'])}",
        )
    console = out()
    show_table(console, table)
    most = [
        text(None if None in values else max(values))
        for values in ([row[name] for row in rows] for name in ("seeds", "seeds_low", "seeds_high"))
    ]
    console.print(
        f"\nA difference of {difference:g} is shown with probability {share:g} in each of these "
        f"{len(rows)} comparisons, at {100 * alpha:.3g} % error for all of them"
        f"{' (the share of the last look)' if looks else ''}, with {most[0]} seeds ({most[1]} to "
        f"{most[2]}){'' if looks else ' in a run without looks'}.",
        soft_wrap=True,
    )
    return 0
