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
        str | None, typer.Option(metavar="NAME", help="Scenario of two tasks, if it has several.")
    ] = None,
    trials: Annotated[
        int, typer.Option(metavar="N", help="Finished trials to reach, earlier ones included.")
    ] = 50,
    searcher: Annotated[
        str, typer.Option(metavar="bayes|random", help="Search algorithm: TPE or random search.")
    ] = "bayes",
    scheduler: Annotated[str, typer.Option(metavar="asha|none", help="Trial scheduler.")] = "asha",
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Concurrent trials.  [default: 1, on a cluster all it has]"),
    ] = None,
    address: Address = None,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", help="CPU threads for each trial.  [default: cores / workers]"),
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(metavar="X", help="GPUs for each trial, such as 0.5 or 1.")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="End the search after 90s, 30m or 2h.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Output folder.  [default: results/SUITE-search/NAME]"),
    ] = None,
    model: Model = None,
    data: Data = None,
    limit: Limit = None,
    epochs: Epochs = None,
    groups: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of rates.  [default: 10, at most layers + 2]"),
    ] = None,
    division: Annotated[
        str, typer.Option(metavar="code|paper", help="Layer groups of the authors' code or paper.")
    ] = "code",
    lowest: Annotated[float, typer.Option(metavar="RATE", help="Lowest learning rate.")] = 1e-7,
    highest: Annotated[float, typer.Option(metavar="RATE", help="Highest learning rate.")] = 1e-3,
    grace: Annotated[int, typer.Option(metavar="EPOCHS", help="ASHA grace period.")] = 1,
    reduction: Annotated[float, typer.Option(metavar="X", help="ASHA reduction factor.")] = 2.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of search and training.")] = 0,
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
        typer.Option(metavar="FILE", help="Python file with tasks or shifts; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be searched; train nothing.")
    ] = False,
) -> int:
    """Search learning rates by depth for a pair of tasks (BERTcL), or resume a search.

    A trial trains both tasks; its reward is p_o + p_s on held-out training rows. Writes
    bertcl.toml for clbench run --methods FILE, and the trials for clbench combine.
    """
    from clbench.cli.search_output import TrialLines, show_outcome, show_plan
    from clbench.evaluation.resources import Resources
    from clbench.search import SearchSettings, make_search
    from clbench.search import search as run_search
    from clbench.suite.options import RunOptions

    choices: dict[str, Any] = {
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
        **choices,
    )
    resources = Resources(workers, address, threads, gpus)
    run_options = RunOptions(
        model=model,
        data=data,
        limit=limit,
        epochs=epochs,
        precision=precision,
        device=device,
        plugins=plugin or (),
        out=out,
    )
    plan = make_search(suite, scenario, settings, run_options)
    if dry_run:
        show_plan(plan)
        return 0
    outcome = run_search(plan, resources=resources, listener=TrialLines(plan))
    same = {"--model": model, "--data": data, "--limit": limit, "--epochs": epochs}
    options = [f"{option} {value}" for option, value in same.items() if value is not None]
    show_outcome(outcome, plan, " ".join([suite, *options]))
    return 0
