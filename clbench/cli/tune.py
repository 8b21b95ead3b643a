"""`clbench tune`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from clbench.cli.arguments import (
    Address,
    Corpus,
    Data,
    Device,
    Epochs,
    Gpus,
    Head,
    Limit,
    Model,
    Plugins,
    Precision,
    Suite,
    Threads,
    Workers,
    choice,
    flag,
    option,
    seeds,
    words,
)

if TYPE_CHECKING:
    from clbench.runner.run_state import RunState
    from clbench.search.study import Study
    from clbench.search.tune import TunePlan


def tune(
    suite: Suite,
    methods: Annotated[
        list[str] | None,
        option("A,B", "Baselines to tune: names or files.  [default: the suite's]"),
    ] = None,
    trials: Annotated[int, option("N", "Trials of each method, earlier sessions included.")] = 20,
    minutes: Annotated[
        float | None,
        option(
            "X",
            "Minutes of training and scoring after which a method gets no further round of trials.",
        ),
    ] = None,
    scenarios: Annotated[
        list[str] | None,
        option("PATTERN", "Scenarios to tune on, such as 'sst2*'; repeatable.  [default: all]"),
    ] = None,
    seed_list: Annotated[
        str, option("SEEDS", "Seeds of each trial; not those that the suite reports.", "--seeds")
    ] = "1000,1001",
    searcher: Annotated[
        str, option("bayes|random", "Search algorithm: TPE or random search.")
    ] = "bayes",
    keep_rate: Annotated[
        bool, flag("--keep-rate", "Keep the flat rate, which is otherwise part of every sweep.")
    ] = False,
    out: Annotated[
        str | None, option("DIR", "Output folder.  [default: results/SUITE-tune]")
    ] = None,
    model: Model = None,
    data: Data = None,
    limit: Limit = None,
    epochs: Epochs = None,
    device: Device = "auto",
    precision: Precision = None,
    head: Head = None,
    corpus: Corpus = None,
    plugin: Plugins = None,
    workers: Workers = None,
    address: Address = None,
    threads: Threads = None,
    gpus: Gpus = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the sweeps and the size of the tuning; train nothing.")
    ] = False,
) -> int:
    """Tune methods, each with the same number of trials over its own sweep.

    A trial trains all scenarios with all seeds; its score is the mean over tasks after the last
    stage, on held-out training rows. Writes a baseline file for each method, for clbench run
    --methods FILE. Repeat the command to resume.
    """
    from clbench import api
    from clbench.cli.console import err
    from clbench.cli.console import out as console
    from clbench.cli.progress import Lines, progress_listener
    from clbench.core.errors import SettingsError, count, display_path, join_names
    from clbench.runner.resources import Resources
    from clbench.search.study import TuneSettings
    from clbench.search.tune import (
        make_tuning,
        read_studies,
        trials_by_method,
        tuning_rounds,
        write_tuned,
    )
    from clbench.suite.options import RunOptions
    from clbench.suite.read import read_suite

    algorithm: Any = choice("--searcher", searcher, ("bayes", "random"))
    numbers: Any = seeds(seed_list)
    if isinstance(numbers, str):
        raise SettingsError(f"--seeds {numbers}: must be numbers, such as 1000,1001.")
    settings = TuneSettings(trials, minutes, tuple(numbers or ()), algorithm, keep_rate)
    resources = Resources(workers, address, threads, gpus)
    options = RunOptions(
        model=model,
        data=data,
        corpus=corpus,
        methods=words("--methods", methods),
        scenarios=words("--scenarios", scenarios),
        limit=limit,
        epochs=epochs,
        precision=precision,
        head=head,
        device=device,
        plugins=plugin or (),
        out=out,
    )
    plan = make_tuning(suite, settings, options)
    state = plan.state(plan.first)
    api.check(state, resources, Lines(state.plan.suite.name, plan.out, err()))
    if dry_run:
        show_sweeps(plan, state)
        return 0
    most = sum(trials_by_method(plan).values())
    for state in tuning_rounds(plan):
        finished = sum(len(study.trials) for study in read_studies(plan))
        err().print(f"{plan.first.suite.name}: {finished} of {count(most, 'trial')} finished")
        with progress_listener(state) as listener:
            api.execute(state, resources, listener)
    studies = read_studies(plan)
    paths = write_tuned(plan, studies)
    show_studies(plan, studies)
    if paths:
        tuned = replace(options, scenarios=None, methods=[display_path(path) for path in paths])
        console().print(f"Next: {shlex.join(tuned.command(read_suite(suite)))}", soft_wrap=True)
    failed = [study.baseline.name for study in studies if study.failures]
    if failed:
        err().print(
            f"Some trials of {join_names(failed)} failed; clbench report {plan.out} says why. The "
            "same command runs them again.",
            soft_wrap=True,
        )
    return 1 if failed else 0


def show_sweeps(plan: TunePlan, state: RunState) -> None:
    """Print the sweep of each method, the number of cells and an estimate of their time.

    `state` is that of the first trials.
    """
    from rich.table import Table

    from clbench.cli.console import out, show_table
    from clbench.cli.estimate import from_finished, from_sizes
    from clbench.core.errors import count
    from clbench.search.tune import read_studies, trials_by_method
    from clbench.suite.baselines import Range
    from clbench.suite.sweep import LR_MULTIPLES, axes

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("method", "trials", "setting", "values"):
        table.add_column(name, overflow="fold", justify="right" if name == "trials" else "left")
    trials = trials_by_method(plan)
    for baseline in plan.first.baselines:
        keep_rate, name = plan.settings.keep_rate, baseline.name
        labels = [(name, str(trials[name]))]
        for setting, axis in axes(baseline, keep_rate=keep_rate).items() or [("", [])]:
            if isinstance(axis, Range):
                text = f"{axis.low:g} to {axis.high:g} ({axis.scale})"
            else:
                text = ", ".join(map(str, axis))
            table.add_row(*(labels.pop() if labels else ("", "")), setting, text)
    show_table(out(), table)
    finished = sum(
        cell.status == "ok"
        for study in read_studies(plan)
        for cell in study.trial_cells(plan.scenarios)
    )
    # Other rates than the first trial's share no stages with it.
    cells = [
        replace(cell, seed=cell.seed + number % len(LR_MULTIPLES))
        for cell in plan.first.cells
        for number in range(trials[cell.baseline.name])
    ]
    estimate = from_finished(cells, state.present) or from_sizes(state.plan, cells)
    out().print(
        f"{count(len(cells), 'cell')} in {plan.out}, {finished} of them finished.\n"
        f"Estimate for all: {estimate}.",
        soft_wrap=True,
    )


def show_studies(plan: TunePlan, studies: Sequence[Study]) -> None:
    """Print the best trial of each method beside its first, and the cost of all."""
    from rich.table import Table

    from clbench.cli.console import duration, out, show_table
    from clbench.core.errors import count
    from clbench.search.search_folder import FAILED

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("method", "trials", "before", "best", "p_o", "p_s", "time", "settings"):
        justify: Any = "left" if name in ("method", "settings") else "right"
        table.add_column(name, justify=justify, overflow="fold")
    for study in studies:
        keeps_rows = any(cell.keeps_rows for cell in study.cells)
        name, number = study.baseline.name + " *" * keeps_rows, str(len(study.trials))
        if not study.has_result:
            table.add_row(name, number, "", "", "", "", "", "all trials failed")
            continue
        best, first = study.best(), study.trials[0]
        changes = ", ".join(f"{key} {value}" for key, value in best.settings.items())
        before = "failed" if first.score == FAILED else f"{first.score:.3f}"
        values = best.score, best.p_o, best.p_s
        scores = (before, *("" if math.isnan(value) else f"{value:.3f}" for value in values))
        table.add_row(
            name, number, *scores, duration(study.cost().seconds), changes or "the baseline's"
        )
    show_table(out(), table)
    out().print(
        "before, best: mean score over tasks, scenarios and seeds on the tuning rows. The best of "
        "many trials is too good by chance: compare on the reported split.",
        soft_wrap=True,
    )
    rest = sum(max(0, len(study.proposals) - plan.settings.trials) for study in studies)
    if rest:
        out().print(
            f"{count(rest, 'further trial')} in {plan.out}: not considered, as each method has "
            f"{plan.settings.trials} by --trials. Their cost counts.",
            soft_wrap=True,
        )
