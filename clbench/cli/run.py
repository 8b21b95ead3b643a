"""`clbench run`."""

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from clbench import api
from clbench.cli.arguments import Suite, command
from clbench.cli.console import err, megabytes, note, say, show_results, show_rows
from clbench.cli.estimate import from_finished, from_sizes
from clbench.cli.progress import Lines, progress_listener
from clbench.core.errors import ClusterError, count, join_names
from clbench.core.options import Option
from clbench.results.reading import garbage_collection_paused
from clbench.runner.resources import Resources
from clbench.runner.run_state import RunState, TensorBoard, read_run_state
from clbench.suite.options import RunOptions
from clbench.suite.plan import Plan

if TYPE_CHECKING:
    from clbench.runner.run_plan import CellRows

MUCH_SCORING = 0.15
"""Scoring that takes a larger share of the time of training is worth a word."""


@command
def run(
    options: RunOptions,
    resources: Resources,
    suite: Suite = "quick",
    tensorboard: Annotated[
        bool, Option("Also write TensorBoard logs to tensorboard/ in the run's folder.")
    ] = False,
    dry_run: Annotated[
        bool, Option("Print the cells, the estimated time and memory; write nothing.")
    ] = False,
) -> int:
    """Run a suite, or resume it: finished cells do not run again.

    Exit code 0 if all cells finished, 1 if some failed, 2 if the command or its input is wrong.

    For example:

      clbench run quick
      clbench run quick --methods vanilla,ewc --seeds 0-4 --workers 2
      clbench run mine.toml --model DIR --plugin l2_start.py --dry-run
    """
    with garbage_collection_paused():
        plan = api.plan_run(suite, options)
        state = read_run_state(plan, replace=options.replace)
        gc.freeze()  # all cells stay in memory, so later searches can skip them
    if dry_run:
        lines = Lines(plan.suite.name, plan.out, err())
        note(*state.notes)
        cells = api.check(state, resources, lines)
        show_plan(state)
        if cells:
            say(*memory_lines(plan, resources, cells))
        return 0
    for step in plan.steps:
        if plan.looks:
            state = read_run_state(step, replace=options.replace)
        try:
            with progress_listener(state) as listener:
                if tensorboard:
                    listener = TensorBoard(listener, plan.out / "tensorboard")
                result = api.execute(state, resources, listener)
        except ClusterError:
            show_results(plan.out, read_run_state(step).present, plan.question)
            raise
        if not plan.looks:
            break
        after = f"After {len({cell.seed for cell in step.cells})} seeds"
        if not (comparisons := api.open_comparisons(result)):
            note(f"{after} every primary comparison is settled.")
            break
        note(f"{after} these comparisons are open: {join_names(comparisons)}.")
    return show_results(result.path, result.cells, plan.question)


def show_plan(state: RunState) -> None:
    """Print the cells of a plan with their states, and the estimated time."""
    plan = state.plan
    states = dict.fromkeys((cell.key for cell in plan.cells), "finished")
    states |= dict.fromkeys((cell.key for cell in state.pending), "to run")
    states |= dict.fromkeys(state.replaced, "finished with other settings, to run again")
    failed = {cell.key for cell in state.present if cell.status == "failed"}
    states |= dict.fromkeys(failed, "failed before, to run again")
    show_rows(((cell.key, states[cell.key]) for cell in plan.cells), ("cell", "state"))
    cells = count(len(plan.cells), "cell")
    lines = [f"{cells}, {len(state.pending)} to run, results in {plan.out}"]
    if plan.looks:
        looks = join_names(map(str, plan.looks))
        lines.append(f"Looks after {looks} seeds: the run may stop at each.")
    if state.pending:
        estimate = from_finished(state.pending, state.present) or from_sizes(plan, state.pending)
        lines.append(f"Estimate: {estimate}.")
        if estimate.scoring > MUCH_SCORING:
            lines.append(
                f"Scoring all tasks so far after each stage takes about {estimate.scoring:.0%} of "
                "the time of training. With a smaller --scored-limit it takes less."
            )
    say(*lines)


def memory_lines(plan: Plan, resources: Resources, cells: "list[CellRows]") -> Iterator[str]:
    """Yield the memory that the baselines need, and the smallest change if one does not fit."""
    from clbench.runner import fit
    from clbench.training.device import resolve_precision

    device = resources.device_here(plan.device)
    precision = resolve_precision(plan.protocol.precision, device)
    found, peak = fit.needs(cells, precision), 0.0
    yield "Memory of the tensors of a training step, and at most in a cell, from shapes:"
    for need in found:
        text = need.reason
        if (memory := need.memory) is not None:
            text, peak = megabytes(memory.training, memory.peak), max(peak, memory.peak)
        yield f"  {need.cell.baseline.name}: {text}"
    if (room := fit.room_mb(device, resources)) is None or not peak:
        return
    taken, whole = f"A cell takes up to {megabytes(fit.total_mb(peak))}", megabytes(room)
    if fit.total_mb(peak) <= room:
        yield f"{taken} with all that runs it, and has {whole}."
    elif change := fit.smallest_change(found, precision, room):
        text, peak = change
        yield f"{taken}, but has {whole}. With {text} it takes {megabytes(fit.total_mb(peak))}."
    else:
        yield f"{taken}, but has {whole}. No setting of clbench is enough: use a smaller model."
