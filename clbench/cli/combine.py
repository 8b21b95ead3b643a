"""`clbench combine`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from clbench.search.baseline import FoundOn
    from clbench.search.combine import Combination


def combine(
    trials: Annotated[
        list[Path], typer.Argument(metavar="TRIALS...", help="A log of trials for each pair.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Baseline file to write, such as mine.toml.")
    ],
    b: Annotated[
        float, typer.Option("--b", metavar="B", help="A rank further down counts B times less.")
    ] = 1.8,
    flat: Annotated[
        float, typer.Option(metavar="RATE", help="Flat rate that multiples are of.")
    ] = 2e-5,
    depth: Annotated[
        int, typer.Option(min=1, metavar="N", help="Layers of the model that was searched on.")
    ] = 12,
    division: Annotated[
        str, typer.Option(metavar="code|paper", help="How its layers were grouped.")
    ] = "code",
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
    from clbench.search import read_log
    from clbench.search.baseline import FoundOn

    if out.suffix != ".toml":
        raise SettingsError(f"--out {out}: must end in .toml, as a baseline file does.")
    picture = out.with_suffix(".png")
    for path in (out, picture):
        if path.exists() and not replace:
            raise SettingsError(f"{path} is there already. Take another --out, or --replace.")
    if not flat > 0:
        raise SettingsError(f"--flat {flat:g}: must be above 0.")
    choice("--division", division, ("code", "paper"))
    found = FoundOn(flat, depth, "paper" if division == "paper" else "code")
    names = _names(trials)
    pairs = [read_log(path) for path in trials]
    try:
        made = combined(pairs, b)
    except ValueError as fault:
        raise DataError(f"{', '.join(map(str, trials))}: {fault}.") from fault
    _write(out, picture, made, names, [len(pair) for pair in pairs], found, b)
    _show(made, names, found)
    return 0


def _names(paths: list[Path]) -> list[str]:
    """What to call the pairs: their files' names, with the folder where two are the same."""
    from clbench.errors import SettingsError

    if len({path.resolve() for path in paths}) < len(paths):
        raise SettingsError("TRIALS: one file is named twice. Name each pair's once.")
    stems = [path.stem for path in paths]
    return [
        stem if stems.count(stem) == 1 else str(path)
        for stem, path in zip(stems, paths, strict=True)
    ]


def _write(
    out: Path,
    picture: Path,
    made: Combination,
    names: list[str],
    counts: list[int],
    found: FoundOn,
    b: float,
) -> None:
    from clbench.cache import atomic_write
    from clbench.cli.console import plural
    from clbench.figures import rate_distributions
    from clbench.search.baseline import baseline_text

    told = ", ".join(
        f"{name} ({plural(count, 'trial')})" for name, count in zip(names, counts, strict=True)
    )
    sources = {
        "multiples": f"clbench combine, b = {b:g}: {told}; over the flat rate {found.flat:g}.",
        "depth": "Given to clbench combine.",
        "division": "Given to clbench combine.",
    }
    text = baseline_text(
        made.rates,
        found,
        description=f"Learning rates combined from {len(names)} pairs.",
        sources=sources,
    )
    figure = rate_distributions(
        dict(zip(names, made.within, strict=True)),
        made.rates,
        groups=found.groups(len(made.rates)),
        flat=found.flat,
    )
    atomic_write(out, text)
    atomic_write(picture, lambda path: figure.savefig(path, format="png", dpi=200))


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
