"""Run a suite from Python; the command line uses the same functions."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import SkipValidation

from clbench.core.errors import RunFolderError, SettingsError
from clbench.core.options import Option, takes
from clbench.core.user_code import own_state
from clbench.results.cell import without_extra_points
from clbench.results.score_tables import Run, scores_frame, to_csv
from clbench.results.score_tables import load_run as load_run
from clbench.results.store import Store
from clbench.runner.resources import Resources
from clbench.runner.run_state import Listener, RunState, read_run_state
from clbench.suite.options import RunOptions
from clbench.suite.plan import Plan, make_plan, validate
from clbench.suite.read import read_suite
from clbench.suite.schema import MEAN
from clbench.suite.scores import SCORE

if TYPE_CHECKING:
    from clbench.runner.run_plan import CellRows, Executor


@dataclass(frozen=True, kw_only=True)
class RunArguments(Resources, RunOptions):
    """The arguments of `run`."""

    suite: Annotated[
        str | Path, Option("Name of a packaged suite, or path of a suite file.", "SUITE")
    ] = field(default="quick", kw_only=False)
    listener: Annotated[
        SkipValidation[Listener] | None,
        Option("Receives the progress of the run.", default="nothing is printed"),
    ] = None

    def __post_init__(self) -> None:
        if self.listener is not None and not hasattr(self.listener, "cell_finished"):
            raise SettingsError("listener: must be a Listener, with its methods.")
        Resources.__post_init__(self)
        RunOptions.__post_init__(self)


@takes(RunArguments)
def run(arguments: RunArguments) -> Run:
    """Run a suite, or resume it: finished cells do not run again.

    Parameters
    ----------
    {options}

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
    for plan in plan_run(arguments.suite, arguments).steps:
        state = read_run_state(plan, replace=arguments.replace)
        result = execute(state, arguments, arguments.listener)
        if plan.looks and not open_comparisons(result):
            break
    return result


def open_comparisons(run: Run) -> list[str]:
    """Return the primary comparisons of a run that are open, as ``score of method on scenario``.

    A comparison of the question is open if its verdict is ``no difference shown`` or ``no
    verdict``, or if a method has no finished cell or lacks the score. Points of sweeps are not
    compared.
    """
    from clbench.results.comparisons import comparisons_frame  # imports pandas

    store = Store(run.path)
    question = store.questions()[-1]
    cells = [c for c in without_extra_points(run.cells) if c.reference_of is None]
    seeds = {cell.seed for cell in cells if cell.status == "ok"}
    table = comparisons_frame(run.cells, question, store.alpha(len(seeds)))
    scored = {*table[["scenario", "score", "method"]].itertuples(index=False, name=None)}
    counts: dict[str, int] = {}  # a failed cell may not know its tasks
    for cell in cells:
        counts[cell.scenario] = max(counts.get(cell.scenario, 0), len(cell.tasks))
    asked = sorted({(c.scenario, c.baseline, counts[c.scenario] or 2) for c in cells})
    table = table[table["primary"] & table["verdict"].isin(["no difference shown", "no verdict"])]
    return [
        f"{row.score} of {row.method}{',' if row.scenario == MEAN else ' on'} {row.scenario}"
        for row in table.itertuples()
    ] + [
        f"{score} of {method} on {scenario}"
        for scenario, method, tasks in asked
        for score in question.scores
        if question.depends_on(scenario, score, method)
        and (scenario, score, method) not in scored
        and (tasks > 1 or SCORE[score].single_task)
    ]


def plan_run(suite: str | Path, options: RunOptions) -> Plan:
    """Return the plan of a run; trains and writes nothing."""
    return make_plan(read_suite(suite, options.plugins), options)


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

        with own_state():
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
                table = to_csv(scores_frame(cells, plan.question.reference))
                store.write_scores(table, state.files)
        except RunFolderError as error:  # the folder may be on a read-only disk
            what = "question" if is_changed else "table"
            listener.note(f"The {what} was not updated: {error}")
    keys = {cell.key for cell in plan.cells}
    return Run(plan.out, tuple(cell for cell in cells if cell.key in keys))


def check(state: RunState, resources: Resources, listener: Listener) -> "list[CellRows]":
    """Raise what `execute` would raise before training; see `run_plan.check_inputs`."""
    if not state.pending:
        return []
    _executor(state, resources)  # checks methods and shifts
    from clbench.runner.run_plan import check_inputs

    return check_inputs(state.plan, state.pending, resources, listener)


def _executor(state: RunState, resources: Resources) -> "Executor":
    """Return what runs the pending cells, after checking their methods and shifts."""
    validate(state.plan, state.pending)
    # Only now: the engine takes seconds to import, and a finished run does not need it.
    from clbench.runner.run_plan import Executor

    if resources.alone:
        return Executor(resources.threads)
    from clbench.runner.ray_executor import RayExecutor

    return RayExecutor(resources)
