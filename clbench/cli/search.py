"""`clbench search`."""

from pathlib import Path
from typing import Annotated, Any

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
    flag,
    option,
    seconds,
)


def search(
    suite: Suite,
    scenario: Annotated[
        str | None, option("NAME", "Scenario of two tasks; needed if the suite has several.")
    ] = None,
    trials: Annotated[
        int, option("N", "Total number of finished trials, earlier sessions included.")
    ] = 50,
    searcher: Annotated[
        str, option("bayes|random", "Search algorithm: TPE or random search.")
    ] = "bayes",
    scheduler: Annotated[str, option("asha|none", "Early stopping of weak trials.")] = "asha",
    workers: Annotated[
        int | None, option("N", "Concurrent trials.  [default: 1; on a cluster as many as fit]")
    ] = None,
    address: Address = None,
    threads: Annotated[
        int | None,
        option("N", "CPU threads per trial.  [default: cores / workers; 1 on a cluster]"),
    ] = None,
    gpus: Annotated[
        float | None, option("X", "GPUs per trial, such as 0.5.  [default: 1, or an equal share]")
    ] = None,
    time_limit: Annotated[
        str | None, option("TIME", "End the search after 90s, 30m or 2h.")
    ] = None,
    out: Annotated[
        str | None, option("DIR", "Output folder.  [default: results/SUITE-search/NAME]")
    ] = None,
    model: Model = None,
    data: Data = None,
    limit: Limit = None,
    epochs: Epochs = None,
    groups: Annotated[
        int | None, option("N", "Number of learning rates.  [default: 10, at most layers + 2]")
    ] = None,
    division: Annotated[
        str, option("code|paper", "Layer groups of the authors' code or paper.")
    ] = "code",
    lowest: Annotated[float, option("RATE", "Lowest learning rate.")] = 1e-7,
    highest: Annotated[float, option("RATE", "Highest learning rate.")] = 1e-3,
    grace: Annotated[int, option("EPOCHS", "Epochs on D_s before ASHA may stop a trial.")] = 1,
    reduction: Annotated[float, option("X", "ASHA continues the best 1/X of the trials.")] = 2.0,
    seed: Annotated[int, option("N", "Seed of search and training.")] = 0,
    paper_split: Annotated[
        bool,
        flag("--paper-split", "Reward trials on the reported split, as the authors' code does."),
    ] = False,
    device: Device = "auto",
    precision: Precision = None,
    plugin: Annotated[
        list[Path] | None, option("FILE", "Python file that registers tasks or shifts; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the plan and the estimated time; train nothing.")
    ] = False,
) -> int:
    """Search learning rates by depth for a pair of tasks (BERTcL).

    A trial trains both tasks; its reward is p_o + p_s on held-out training rows. Writes
    bertcl.toml for clbench run --methods FILE, and the trials for clbench combine. Repeat the
    command to resume the search.
    """
    from clbench.cli.search_output import TrialLines, show_outcome, show_plan
    from clbench.runner.resources import Resources
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
    resources = Resources(workers=workers, address=address, threads=threads, gpus=gpus)
    options = RunOptions(
        model=model,
        data=data,
        limit=limit,
        epochs=epochs,
        precision=precision,
        device=device,
        plugins=plugin or (),
        out=out,
    )
    plan = make_search(suite, scenario, settings, options)
    if dry_run:
        show_plan(plan, resources)
    else:
        outcome = run_search(plan, resources, listener=TrialLines(plan))
        show_outcome(outcome, plan, suite, options)
    return 0
