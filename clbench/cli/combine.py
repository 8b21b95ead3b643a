"""`clbench combine`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from clbench.search.baseline import FoundOn
    from clbench.search.combine import Combination
    from clbench.search.source import Source


def combine(
    trials: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRIALS...", help="For each pair the folder of a search, or a log of trials."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Baseline file to write, such as mine.toml.")
    ],
    b: Annotated[
        float, typer.Option("--b", metavar="B", help="A rank further down counts B times less.")
    ] = 1.8,
    flat: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Flat rate that multiples are of.  [default: the search's, or 2e-5]",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Layers of the model that logs are of.  [default: the search's, or 12]",
        ),
    ] = None,
    division: Annotated[
        str | None,
        typer.Option(
            metavar="code|paper",
            help="How its layers were grouped.  [default: the search's, or code]",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write over a file that is there.")
    ] = False,
) -> int:
    """Combine searched learning rates into one distribution for clbench run --methods FILE.

    Within each pair a weighted geometric mean, across pairs the plain one. Also draws them, into
    a .png beside the file.
    """
    from clbench.cli.options import choice
    from clbench.errors import DataError, SettingsError
    from clbench.search import combine as combined
    from clbench.search.source import agreed, read_source

    if out.suffix != ".toml":
        raise SettingsError(f"--out {out}: must end in .toml, as a baseline file does.")
    picture = out.with_suffix(".png")
    for path in (out, picture):
        if path.is_dir():
            raise SettingsError(f"{path} is a folder. Take another --out.")
        if path.exists() and not replace:
            raise SettingsError(f"{path} is there already. Take another --out, or --replace.")
    if flat is not None and not 0 < flat <= 1:
        raise SettingsError(f"--flat {flat:g}: must be above 0, and at most 1.")
    grouped: Any = division and choice("--division", division, ("code", "paper"))
    if len({path.resolve() for path in trials}) < len(trials):
        raise SettingsError("TRIALS: one of them is named twice. Name each pair's once.")
    sources = [read_source(path) for path in trials]
    found = agreed(sources, flat=flat, depth=depth, division=grouped)
    try:
        made = combined([source.trials for source in sources], b)
    except ValueError as fault:
        raise DataError(f"{', '.join(map(str, trials))}: {fault}.") from fault
    names = _names(sources)
    _write(out, picture, made, sources, names, found, b)
    _show(made, names, found)
    return 0


def _names(sources: Sequence[Source]) -> list[str]:
    """What to call the pairs; by their paths where two are called the same."""
    names = [source.name for source in sources]
    return [
        name if names.count(name) == 1 else str(source.path)
        for name, source in zip(names, sources, strict=True)
    ]


def _write(
    out: Path,
    picture: Path,
    made: Combination,
    sources: Sequence[Source],
    names: list[str],
    found: FoundOn,
    b: float,
) -> None:
    from clbench.cache import write_atomically
    from clbench.cli.console import plural
    from clbench.figures import rate_distributions
    from clbench.results.output_folder import as_folder_error, write_text
    from clbench.search.baseline import baseline_text
    from clbench.search.source import total

    parts = []
    for name, source in zip(names, sources, strict=True):
        on = f", on {source.split}" if source.split else ""
        parts.append(f"{name} ({plural(len(source.trials), 'trial')}{on})")
    told = ", ".join(parts)
    if 0 < sum(source.cost is None for source in sources) < len(sources):
        told += "; the cost is that of the searches, as logs tell none"
    known = any(source.found for source in sources)
    given = "As the searches say." if known else "Given to clbench combine, or its default."
    text = baseline_text(
        made.rates,
        found,
        description=f"Learning rates combined from {len(names)} pairs.",
        sources={
            "multiples": f"clbench combine, b = {b:g}: {told}; over the flat rate {found.flat:g}.",
            "depth": given,
            "division": given,
        },
        cost=total(sources),
    )
    figure = rate_distributions(
        dict(zip(names, made.within, strict=True)),
        made.rates,
        groups=found.groups(len(made.rates)),
        flat=found.flat,
    )
    with as_folder_error(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with as_folder_error(picture):
        write_atomically(picture, lambda path: figure.savefig(path, format="png", dpi=200))
    write_text(out, text)


def _show(made: Combination, names: list[str], found: FoundOn) -> None:
    from rich.table import Table

    from clbench.cli.console import out, show_table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("group")
    for title in ("combined", "x flat", *names):
        table.add_column(title, justify="right", overflow="fold")
    rows = zip(found.groups(len(made.rates)), made.rates, *made.within, strict=True)
    for group, rate, *within in rows:
        cells = [f"{value:.3g}" for value in (rate, rate / found.flat, *within)]
        table.add_row(group, *cells)
    show_table(out(), table)
