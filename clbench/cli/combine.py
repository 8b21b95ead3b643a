"""`clbench combine`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from clbench.cli.arguments import choice, flag, option
from clbench.models.groups import MOST_LAYERS


def combine(
    trials: Annotated[
        list[Path],
        typer.Argument(metavar="TRIALS", help="Search folder or trial log of each pair of tasks."),
    ],
    out: Annotated[Path, option("FILE", "Baseline file to write, such as mine.toml.")],
    b: Annotated[
        float, option("B", "Each trial weighs B times less than the next better one.", "--b")
    ] = 1.8,
    flat: Annotated[
        float | None,
        option(
            "RATE",
            "Flat rate that the file's multiples refer to.  [default: the search's, or 2e-5]",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_LAYERS,
            metavar="N",
            help="Number of layers of the model.  [default: the search's, or 12]",
        ),
    ] = None,
    division: Annotated[
        str | None,
        option("code|paper", "Layer groups of the trials.  [default: the search's, or code]"),
    ] = None,
    replace: Annotated[bool, flag("--replace", "Overwrite existing files.")] = False,
) -> int:
    """Combine the learning rates of several searches into a baseline.

    Takes a weighted geometric mean within each pair and the plain one across pairs. Writes a
    file for clbench run --methods FILE, and a figure as .png beside it.
    """
    from clbench.cli.search_output import show_rates
    from clbench.core.errors import DataError, SettingsError, count
    from clbench.core.files import write_atomically
    from clbench.figures import rate_distributions
    from clbench.figures.style import save_png
    from clbench.search import combine as combine_trials
    from clbench.search.trials import common_origin, cost_of, read_source

    if out.suffix != ".toml":
        raise SettingsError(f"--out {out}: must end in .toml, as a baseline file does.")
    picture = out.with_suffix(".png")
    for path in (out, picture):
        if path.exists() and (path.is_dir() or not replace):
            hint = "" if path.is_dir() else ", or give --replace"
            raise SettingsError(f"{path} already exists. Choose another --out{hint}.")
    if flat is not None and not 1e-9 <= flat <= 1:
        raise SettingsError(f"--flat {flat:g}: must be between 1e-09 and 1.")
    groups: Any = division
    if division is not None:
        choice("--division", division, ("code", "paper"))
    if len({path.resolve() for path in trials}) < len(trials):
        raise SettingsError("TRIALS: each folder or log may be given only once.")
    sources = [read_source(path) for path in trials]
    origin = common_origin(sources, flat=flat, depth=depth, division=groups)
    try:
        combination = combine_trials([source.trials for source in sources], b)
    except ValueError as error:
        raise DataError(f"{', '.join(map(str, trials))}: {error}.") from error

    given = [source.name for source in sources]
    within, pairs = {}, []
    for source, rates in zip(sources, combination.within, strict=True):
        name = source.name if given.count(source.name) == 1 else str(source.path)
        within[name] = rates
        split = f", on {source.split}" if source.split else ""
        pairs.append(f"{name} ({count(len(source.trials), 'trial')}{split})")
    records = [record for source in sources for record in source.records]
    logs = sum(source.origin is None for source in sources)
    remark = "; the cost does not include the logs'" if 0 < logs < len(sources) else ""
    by_user = "Given to clbench combine, or its default."
    text = origin.baseline_text(
        combination.rates,
        f"Learning rates combined from {count(len(pairs), 'pair')}.",
        f"clbench combine, b = {b:g}: {', '.join(pairs)}{remark}.",
        by_user if logs == len(sources) else "As in the searches.",
        cost_of(records) if records else None,
    )
    labels = origin.group_names(len(combination.rates))
    figure = rate_distributions(within, combination.rates, groups=labels, flat=origin.flat)
    write_atomically(picture, lambda path: save_png(figure, path))
    write_atomically(out, text)
    show_rates(labels, {"combined": combination.rates, **within}, origin.flat)
    return 0
