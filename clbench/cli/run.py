"""`clbench run`."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Annotated

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
    Subset,
    Suite,
    Threads,
    Workers,
    flag,
    option,
    seeds,
    words,
)
from clbench.core.errors import ClusterError

if TYPE_CHECKING:
    from clbench.runner.run_state import RunState


def run(
    suite: Suite = "quick",
    out: Annotated[
        str | None, option("DIR", "Folder of the run.  [default: results/SUITE]")
    ] = None,
    model: Model = None,
    data: Data = None,
    methods: Annotated[
        list[str] | None,
        option(
            "A,B",
            "Baselines to run (methods with fixed settings; clbench list methods): names or files, "
            "comma-separated.  [default: the suite's]",
        ),
    ] = None,
    scenarios: Annotated[
        list[str] | None,
        option("PATTERN", "Scenarios to run, such as 'sst2*'; repeatable.  [default: all]"),
    ] = None,
    seed_list: Annotated[
        str | None,
        option(
            "SEEDS",
            "Seeds as 0,1,2 or 0-4. With until-settled or until-settled:5,10,20, add seeds from 0 "
            "on until every primary comparison is settled.  [default: the suite's]",
            "--seeds",
        ),
    ] = None,
    limit: Limit = None,
    subset: Subset = None,
    epochs: Epochs = None,
    device: Device = "auto",
    precision: Precision = None,
    head: Head = None,
    lm_eval: Annotated[
        list[str] | None,
        option(
            "A,B",
            "Tasks of the LM Evaluation Harness to run on language models after the last stage "
            "(pip install lm-eval).  [default: the suite's]",
        ),
    ] = None,
    corpus: Corpus = None,
    plugin: Plugins = None,
    references: Annotated[
        bool | None,
        flag(
            "--references/--no-references",
            "Whether to also train each scenario's last task alone, for intransigence.  [default: "
            "the suite's, normally yes]",
        ),
    ] = None,
    sweep: Annotated[
        int | None,
        option(
            "N",
            "Run each baseline at N values of its dial (the first setting of its [sweep]), its own "
            "value included, to compare trade-off curves. From 2 to 100.",
        ),
    ] = None,
    keep_stages: Annotated[
        bool,
        flag(
            "--keep-stages",
            "Keep the weights after each cell's last stage under stages/, so that a longer order "
            "of the same sequence can continue from them.",
        ),
    ] = False,
    replace: Annotated[
        bool,
        flag("--replace", "Rerun cells of other settings; move their files to cells/replaced/."),
    ] = False,
    workers: Workers = None,
    address: Address = None,
    threads: Threads = None,
    gpus: Gpus = None,
    tensorboard: Annotated[
        bool,
        flag("--tensorboard", "Also write TensorBoard logs to tensorboard/ in the run's folder."),
    ] = False,
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the cells and the estimated time; write nothing.")
    ] = False,
) -> int:
    """Run a suite, or resume it: finished cells do not run again.

    Exit code 0 if all cells finished, 1 if some failed, 2 if the command or its input is wrong.
    """
    from clbench import api
    from clbench.cli.console import err
    from clbench.results.store import garbage_collection_paused
    from clbench.runner.resources import Resources
    from clbench.runner.run_state import read_run_state
    from clbench.suite.options import RunOptions

    resources = Resources(workers, address, threads, gpus)
    options = RunOptions(
        model=model,
        data=data,
        corpus=corpus,
        methods=words("--methods", methods),
        scenarios=words("--scenarios", scenarios),
        seeds=seeds(seed_list),
        limit=limit,
        subset=subset,
        epochs=epochs,
        precision=precision,
        head=head,
        lm_eval=words("--lm-eval", lm_eval),
        device=device,
        plugins=plugin or (),
        references=references,
        sweep=sweep,
        keep_stages=keep_stages,
        out=out,
    )
    with garbage_collection_paused():
        state = read_run_state(api.plan_run(suite, options), replace=replace)
        gc.freeze()  # all cells stay in memory, so later searches can skip them
    from clbench.cli.progress import Lines, progress_listener

    if dry_run:
        lines = Lines(state.plan.suite.name, state.plan.out, err())
        for text in state.notes:
            lines.note(text)
        api.check(state, resources, lines)
        show_plan(state)
        return 0
    from clbench.cli.table import show_results

    for step in api.steps_of(options):
        if options.looks:
            state = read_run_state(api.plan_run(suite, step), replace=replace)
        try:
            with progress_listener(state) as listener:
                if tensorboard:
                    from clbench.runner.listener import TensorBoard

                    listener = TensorBoard(listener, state.plan.out / "tensorboard")
                result = api.execute(state, resources, listener)
        except ClusterError:
            present = read_run_state(state.plan).present
            show_results(state.plan.out, present, state.plan.question.reference)
            raise
        if not options.looks:
            break
        comparisons = api.open_comparisons(result)
        err().print(_look(len(step.seeds or ()), comparisons), soft_wrap=True)
        if not comparisons:
            break
    return show_results(result.path, result.cells, state.plan.question.reference)


def _look(seeds: int, comparisons: list[str]) -> str:
    """Return a line on a look of a run that adds seeds."""
    from clbench.core.errors import join_names

    if not comparisons:
        return f"After {seeds} seeds every primary comparison is settled."
    return f"After {seeds} seeds these comparisons are open: {join_names(comparisons)}."


def show_plan(state: RunState) -> None:
    """Print the cells of a plan with their states, and the estimated time."""
    from rich.table import Table

    from clbench.cli.console import out, show_table
    from clbench.cli.estimate import MUCH_SCORING, from_finished, from_sizes
    from clbench.core.errors import count, join_names

    plan = state.plan
    states = dict.fromkeys((cell.key for cell in plan.cells), "finished")
    states |= dict.fromkeys((cell.key for cell in state.pending), "to run")
    states |= dict.fromkeys(state.replaced, "finished with other settings, to run again")
    failed = {cell.key for cell in state.present if cell.status == "failed"}
    states |= dict.fromkeys(failed, "failed before, to run again")
    table = Table("cell", "state", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for cell in plan.cells:
        table.add_row(cell.key, states[cell.key])
    console = out()
    show_table(console, table)
    cells = count(len(plan.cells), "cell")
    line = f"{cells}, {len(state.pending)} to run, results in {plan.out}"
    console.print(line, soft_wrap=True)
    if plan.looks:
        looks = join_names(map(str, plan.looks))
        console.print(f"Looks after {looks} seeds: the run may stop at each.", soft_wrap=True)
    if state.pending:
        estimate = from_finished(state.pending, state.present) or from_sizes(plan, state.pending)
        console.print(f"Estimate: {estimate}.", soft_wrap=True)
        if estimate.scoring > MUCH_SCORING:
            console.print(
                f"Scoring all tasks so far after each stage takes about {estimate.scoring:.0%} of "
                "the time of training. With a smaller `scored_limit` it takes less.",
                soft_wrap=True,
            )
