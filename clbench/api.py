"""Run a suite from Python; the command line uses the same functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clbench.core.errors import RunFolderError
from clbench.results.score_tables import Run, scores_frame, to_csv
from clbench.results.score_tables import load_run as load_run
from clbench.results.store import Store
from clbench.runner.listener import Listener
from clbench.runner.resources import Resources
from clbench.runner.run_state import RunState, read_run_state

if TYPE_CHECKING:
    from clbench.runner.run_plan import Executor
    from clbench.suite.baselines import Baseline
    from clbench.suite.options import RunOptions
    from clbench.suite.plan import Plan


def run(
    suite: str | Path = "quick",
    *,
    out: str | Path | None = None,
    model: str | None = None,
    data: str | Path | None = None,
    methods: Sequence[str | Baseline] | None = None,
    scenarios: Sequence[str] | None = None,
    seeds: Sequence[int] | str | None = None,
    limit: int | None = None,
    subset: str | None = None,
    epochs: int | None = None,
    device: str = "auto",
    precision: str | None = None,
    head: str | None = None,
    lm_eval: Sequence[str] | None = None,
    corpus: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
    references: bool | None = None,
    sweep: int | None = None,
    keep_stages: bool = False,
    replace: bool = False,
    workers: int | None = None,
    address: str | None = None,
    threads: int | None = None,
    gpus: float | None = None,
    listener: Listener | None = None,
) -> Run:
    """Run a suite, or resume it: finished cells do not run again.

    Parameters
    ----------
    suite
        Name of a packaged suite, or path of a suite file.
    out
        The run's folder; by default ``results/<suite>``.
    model, limit, subset, epochs, precision, head, lm_eval
        Override the suite's protocol: the model, the maximum rows of a split, whether each seed
        trains on other rows (``seed``) or not (``fixed``), the passes over each task's rows (also
        where the suite sets epochs or steps per task), the precision, the kind of head, and tasks
        of the LM Evaluation Harness.
    data
        Folder with copies of hub repositories, such as ``DIR/glue``; by default the hub itself.
    methods, scenarios, seeds
        Select what to run instead of all of the suite: baselines by name or path, scenarios by
        shell patterns, seeds. ``until-settled`` or ``until-settled:5,10,20`` adds seeds from 0 on
        until every primary comparison is settled, at most as many as the last number. The run
        is looked at after each number of seeds, and the error rate is spent over these looks.
    device
        ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
    corpus
        Text corpus for methods and shifts that use the language-model loss: a file with one
        text per line, ``wiki40b/en`` or ``built-in``.
    plugins
        Python files that register methods, shifts, tasks or models.
    references
        Whether to also train each scenario's last task alone, once for each seed, for
        intransigence; by default what the suite says, which is yes unless it has
        ``references = false``.
    sweep
        Run each baseline at this many values of its dial, the first setting of its ``[sweep]``,
        its own value included, to compare trade-off curves.
    keep_stages
        Keep the weights after each cell's last stage, so that a longer order of the same sequence
        goes on from there.
    replace
        Rerun cells that finished with other settings; their files move to ``cells/replaced/``.
    workers, address, threads, gpus
        Concurrent cells, the Ray cluster to run them on, and the CPU threads and GPUs of each;
        see `clbench.Resources`. By default cells run one after another in
        this process. On a CPU the last digits of scores depend on `threads`, never on the other
        three.
    listener
        Receives the progress of the run; by default nothing is printed.

    Returns
    -------
    Run
        The cells of this plan, failed ones included.

    Raises
    ------
    ClbenchError
        For errors that the user can fix: unknown names, wrong settings, missing data, a folder
        that is in use or holds cells of other settings.
    """
    from clbench.suite.options import RunOptions

    resources = Resources(workers, address, threads, gpus)
    options = RunOptions(
        model=model,
        data=data,
        corpus=corpus,
        methods=methods,
        scenarios=scenarios,
        seeds=seeds,
        limit=limit,
        subset=subset,
        epochs=epochs,
        precision=precision,
        head=head,
        lm_eval=lm_eval,
        device=device,
        plugins=plugins,
        references=references,
        sweep=sweep,
        keep_stages=keep_stages,
        out=out,
    )
    for step in steps_of(options):
        state = read_run_state(plan_run(suite, step), replace=replace)
        result = execute(state, resources, listener)
        if options.looks and not open_comparisons(result):
            break
    return result


def steps_of(options: RunOptions) -> Iterator[RunOptions]:
    """Yield the options of each look of a run that adds seeds until it is settled, in order.

    The options of any other run are yielded as they are.
    """
    if not options.looks:
        yield options
    for look in options.looks:
        yield dataclasses.replace(options, seeds=tuple(range(look)))


def open_comparisons(run: Run) -> list[str]:
    """Return the primary comparisons of a run that are open, as ``score of method on scenario``.

    A comparison of the question is open if its verdict is ``no difference shown`` or ``no
    verdict``, or if a method has no finished cell.
    """
    from clbench.results.comparisons import comparisons_frame
    from clbench.suite.question import MEAN

    store = Store(run.path)
    question, cells = store.questions()[-1], [c for c in run.cells if c.reference_of is None]
    good = {(cell.scenario, cell.baseline) for cell in cells if cell.status == "ok"}
    lost = sorted({(cell.scenario, cell.baseline) for cell in cells} - good)
    seeds = {cell.seed for cell in cells if cell.status == "ok"}
    table = comparisons_frame(run.cells, question, store.alpha(len(seeds)))
    table = table[table["primary"] & table["verdict"].isin(["no difference shown", "no verdict"])]
    return [
        f"{row.score} of {row.method}{',' if row.scenario == MEAN else ' on'} {row.scenario}"
        for row in table.itertuples()
    ] + [
        f"{score} of {method} on {scenario}"
        for scenario, method in lost
        for score in question.scores
        if question.depends_on(scenario, score, method)
    ]


def plan_run(suite: str | Path, options: RunOptions) -> Plan:
    """Return the plan of a run; trains and writes nothing."""
    from clbench.suite.plan import make_plan
    from clbench.suite.plugins import load_plugins
    from clbench.suite.read import read_suite

    load_plugins(options.plugins)
    return make_plan(read_suite(suite), options)


def execute(
    state: RunState,
    resources: Resources = Resources(),  # noqa: B008 - immutable
    listener: Listener | None = None,
) -> Run:
    """Run the pending cells and update ``scores.csv``; return the cells of the plan."""
    plan = state.plan
    listener = listener or Listener()
    if state.pending or state.replaced:
        executor = _executor(state, resources)
        from clbench.runner import run_plan

        cells = run_plan.run_plan(state, listener, executor)
    else:
        for text in state.notes:
            listener.note(text)
        listener.started(len(plan.cells), 0)
        cells = state.with_new(())
        store = Store(plan.out)
        is_changed = store.questions()[-1] != plan.question
        try:
            if is_changed:
                with store.lock():
                    questions = plan.resolved()["questions"]
                    store.write_suite(
                        {**plan.resolved(), **store.read_suite(), "questions": questions}
                    )
            if is_changed or not state.scores_are_current():
                store.write_scores(to_csv(scores_frame(cells, plan.question.reference)))
        except RunFolderError as error:  # the folder may be on a read-only disk
            what = "question" if is_changed else "table"
            listener.note(f"The {what} was not updated: {error}")
    keys = {cell.key for cell in plan.cells}
    return Run(plan.out, tuple(cell for cell in cells if cell.key in keys))


def check(state: RunState, resources: Resources, listener: Listener) -> None:
    """Raise what `execute` would raise before training; see `run_plan.check_inputs`."""
    if state.pending:
        _executor(state, resources)  # checks methods and shifts
        from clbench.runner.run_plan import check_inputs

        check_inputs(state.plan, state.pending, resources, listener)


def _executor(state: RunState, resources: Resources) -> Executor:
    """Return what runs the pending cells, after checking their methods and shifts."""
    from clbench.suite.plan import validate

    validate(state.plan, state.pending)
    # Only now: the engine takes seconds to import, and a finished run does not need it.
    from clbench.runner.run_plan import Executor

    if resources.alone:
        return Executor(resources.threads)
    from clbench.runner.ray_executor import RayExecutor

    return RayExecutor(resources)
