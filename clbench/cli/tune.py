"""`clbench tune`."""

from dataclasses import replace
from typing import Annotated, Any

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
    words,
)


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
    from clbench.cli.progress import Lines, progress_listener
    from clbench.cli.search_output import show_next, show_studies, show_sweeps
    from clbench.core.errors import SettingsError, count, display_path, join_names
    from clbench.runner.resources import Resources
    from clbench.search.plan import TuneSettings, make_tuning
    from clbench.search.study import read_studies, tuning_rounds, write_tuned
    from clbench.suite.options import RunOptions, read_seeds

    algorithm: Any = choice("--searcher", searcher, ("bayes", "random"))
    numbers = read_seeds(seed_list)
    if isinstance(numbers, str):
        raise SettingsError(f"--seeds {numbers}: must be numbers, such as 1000,1001.")
    settings = TuneSettings(trials, minutes, numbers, algorithm, keep_rate)
    resources = Resources(workers=workers, address=address, threads=threads, gpus=gpus)
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
    state, studies = plan.state(plan.first), read_studies(plan)
    api.check(state, resources, Lines(plan.first.suite.name, plan.out, err()))
    if dry_run:
        show_sweeps(plan, studies, state)
        return 0
    most = sum(study.most for study in studies)
    for state in tuning_rounds(plan):
        finished = sum(len(study.trials) for study in read_studies(plan))
        err().print(f"{plan.first.suite.name}: {finished} of {count(most, 'trial')} finished")
        with progress_listener(state) as listener:
            api.execute(state, resources, listener)
    studies = read_studies(plan)
    paths = write_tuned(plan, studies)
    show_studies(plan, studies)
    if paths:
        files = [display_path(path) for path in paths]
        show_next(suite, replace(options, scenarios=None, methods=files))
    failed = [study.baseline.name for study in studies if study.failures]
    if failed:
        err().print(
            f"Some trials of {join_names(failed)} failed; clbench report {plan.out} says why. The "
            "same command runs them again.",
            soft_wrap=True,
        )
    return 1 if failed else 0
