"""`clbench search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clbench.cli.arguments import (
    Address,
    Data,
    Device,
    Epochs,
    Limit,
    Model,
    Precision,
    Suite,
    choice,
    seconds,
)


def search(
    suite: Suite,
    scenario: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its scenario of two tasks; needed if it has several."),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(metavar="N", help="That come to an end, those of before included."),
    ] = 50,
    searcher: Annotated[
        str, typer.Option(metavar="bayes|random", help="Who proposes rates.")
    ] = "bayes",
    scheduler: Annotated[
        str, typer.Option(metavar="asha|none", help="Who stops hopeless trials.")
    ] = "asha",
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Trials at a time.  [default: 1, on a cluster all it has]"),
    ] = None,
    address: Address = None,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processor threads of a trial.  [default: cores / workers]"),
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(metavar="X", help="GPUs of a trial, such as 0.5 or 1.")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="End after 90s, 30m or 2h of training.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder.  [default: results/SUITE-search/NAME]"),
    ] = None,
    model: Model = None,
    data: Data = None,
    limit: Limit = None,
    epochs: Epochs = None,
    groups: Annotated[
        int | None,
        typer.Option(metavar="N", help="Rates.  [default: 10, or layers + 2 if that is less]"),
    ] = None,
    division: Annotated[
        str, typer.Option(metavar="code|paper", help="How layers are put into groups.")
    ] = "code",
    lowest: Annotated[float, typer.Option(metavar="RATE", help="Of each rate.")] = 1e-7,
    highest: Annotated[float, typer.Option(metavar="RATE", help="Of each rate.")] = 1e-3,
    grace: Annotated[int, typer.Option(metavar="EPOCHS", help="That asha gives every trial.")] = 1,
    reduction: Annotated[
        float, typer.Option(metavar="X", help="Of X trials asha lets one go on.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of searcher and training.")] = 0,
    paper_split: Annotated[
        bool,
        typer.Option(
            "--paper-split", help="Reward on the reported split, as the authors' code does."
        ),
    ] = False,
    device: Device = "auto",
    precision: Precision = None,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Python file with tasks, shifts; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be searched; train nothing.")
    ] = False,
) -> int:
    """Search learning rates by depth for a pair of tasks, or go on with a search (BERTcL).

    A trial trains both tasks and is rewarded with p_o + p_s on rows held out of the training
    rows. Writes bertcl.toml for clbench run --methods FILE, and all trials for clbench combine.
    """
    from clbench.cli.searching import Lines, show_found, show_search
    from clbench.evaluation.resources import Resources
    from clbench.search import SearchSettings, make_search
    from clbench.search import search as searched
    from clbench.suite.options import RunOptions

    chosen: dict[str, Any] = {
        "searcher": choice("--searcher", searcher, ("bayes", "random")),
        "scheduler": choice("--scheduler", scheduler, ("asha", "none")),
        "division": choice("--division", division, ("code", "paper")),
    }
    settings = SearchSettings(
        trials=trials,
        grace=grace,
        reduction=reduction,
        groups=groups,
        lowest=lowest,
        highest=highest,
        seed=seed,
        paper_split=paper_split,
        time_limit=None if time_limit is None else seconds("--time-limit", time_limit),
        **chosen,
    )
    place = Resources(workers, address, threads, gpus)
    plan = make_search(
        suite,
        scenario,
        settings,
        RunOptions(
            model=model,
            data=data,
            limit=limit,
            epochs=epochs,
            precision=precision,
            device=device,
            plugins=plugin or (),
            out=out,
        ),
    )
    if dry_run:
        show_search(plan)
        return 0
    same = {"--model": model, "--data": data, "--limit": limit, "--epochs": epochs}
    options = [f"{option} {value}" for option, value in same.items() if value is not None]
    found = searched(plan, place=place, listener=Lines(plan))
    show_found(found, plan, " ".join([suite, *options]))
    return 0
