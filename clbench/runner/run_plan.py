"""Run the pending cells of a plan, and write each result as soon as it is ready."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Protocol

import torch

from clbench.core.errors import PluginError
from clbench.core.files import check_folder
from clbench.measure.rows import PreparedScenario
from clbench.results.cell import CellResult
from clbench.results.score_tables import scores_frame, to_csv
from clbench.results.store import Store
from clbench.runner.cell_stages import ComputeSettings, stages_to_share
from clbench.runner.listener import Listener
from clbench.runner.prepare import InputChecker, ScenarioPreparer
from clbench.runner.resources import Resources, check_reachable
from clbench.runner.run_cell import numerics, run_cell
from clbench.runner.run_state import RunState, read_run_state
from clbench.runner.stage_cache import StageCache
from clbench.suite.baselines import Baseline
from clbench.suite.plan import Cell, Plan
from clbench.suite.schema import ScenarioSpec
from clbench.suite.validation import check_shared_head, check_tasks
from clbench.training.device import (
    keep_freed_memory,
    make_repeatable,
    resolve_device,
    resolve_precision,
)

SCORES_EVERY = 5.0
"""Least seconds between rewrites of ``scores.csv`` while cells finish."""
SCORES_SHARE = 0.05
"""Largest share of the time to spend on them: each takes longer the more cells there are."""


class Executor(Protocol):
    """Runs cells, in this process or in workers."""

    def device(self, plan: Plan) -> torch.device:
        """Return the device on which this process embeds rows."""

    def ready(self, plan: Plan) -> AbstractContextManager[object]:
        """Return a context to prepare and run cells in; it raises if no cell can ever run."""

    def results(
        self, plan: Plan, pending: Sequence[Cell], preparer: ScenarioPreparer, listener: Listener
    ) -> Generator[CellResult, None, None]:
        """Yield the results of the pending cells, each as soon as it is ready.

        Closing the generator stops the running cells.
        """


class InProcessExecutor:
    """Runs one cell after another in this process, with `threads` torch threads."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    def device(self, plan: Plan) -> torch.device:
        """Return the plan's device."""
        return resolve_device(plan.device)

    def ready(self, plan: Plan) -> AbstractContextManager[object]:
        """Do nothing."""
        return nullcontext()

    def results(
        self, plan: Plan, pending: Sequence[Cell], preparer: ScenarioPreparer, listener: Listener
    ) -> Generator[CellResult, None, None]:
        """Yield the results in the order of the cells."""
        sharing = stages_to_share(pending)
        cache = StageCache(plan.out / "stages", sharing, keeps_last=plan.keep_stages)

        def prepare(cell: Cell) -> PreparedScenario:
            return preparer.prepare(cell.scenario, cell.seed)

        with thread_count(self.threads):
            settings = compute_settings(plan)
            for cell in pending:
                listener.cell_started(cell)
                yield run_cell(cell, prepare, settings, cache, listener)


TRIMMED = (
    "--keep-stages with trim_embeddings: an order with other tasks has other words, so it cannot "
    "continue from these stages. Set trim_embeddings = false in [protocol]."
)
"""Note on stages that hardly any other order can use."""


def run_plan(state: RunState, listener: Listener, executor: Executor) -> list[CellResult]:
    """Run the pending cells of a plan.

    Errors in the data or the model are raised before the first cell trains; later errors only
    fail their own cell. The folder is read again if it has changed since `state` was read.

    Returns all cells of the folder, in the order of tables.

    Raises
    ------
    ClbenchError
        If a task, a shift or the model is wrong, or the folder is in use.
    """
    plan = state.plan
    store = Store(plan.out)
    preparer = ScenarioPreparer.of(plan, executor.device(plan), output=plan.out / "scenarios")
    with store.lock(), executor.ready(plan):
        if not state.is_current():
            state = read_run_state(plan, replace=state.replace)
        _prepare_all(preparer, plan, state.pending, listener)
        for text in state.put_aside(store):
            listener.note(text)
        if plan.keep_stages and plan.protocol.trim_embeddings:
            listener.note(TRIMMED)
        store.write_suite(plan.resolved())
        listener.started(len(plan.cells), len(state.pending))
        new: list[CellResult] = []

        def write_scores() -> float:
            """Write the table; return when to write it again."""
            start = time.monotonic()
            if cells := state.with_new(new):
                store.write_scores(to_csv(scores_frame(cells, plan.question.reference)))
            end = time.monotonic()
            return end + max(SCORES_EVERY, (end - start) / SCORES_SHARE)

        next_write = 0.0
        try:
            with closing(executor.results(plan, state.pending, preparer, listener)) as results:
                for result in results:
                    store.write_cell(result)
                    new.append(result)
                    if time.monotonic() > next_write:
                        next_write = write_scores()
                    listener.cell_finished(result)
        finally:
            # Even after an interruption, the table must hold every cell on disk.
            write_scores()
        StageCache(plan.out / "stages").drop_of_run()
    return state.with_new(new)


def check_inputs(
    plan: Plan, pending: Sequence[Cell], resources: Resources, listener: Listener
) -> None:
    """Raise what `run_plan` would raise before training; write and embed nothing.

    Not noticed: errors that only the embeddings of rows show.
    """
    checker = InputChecker.of(plan, resources.device_here(plan.device))
    check_folder(plan.out)
    check_reachable(resources)
    checker.check_model()
    for spec in _scenarios(pending):
        try:
            scenario = checker.check(spec)
        except PluginError as error:
            listener.note(str(error))
            continue
        if scenario is not None:
            check_shared_head(plan.question, scenario)
            check_tasks(_baselines(pending, spec), scenario, plan.protocol)


def compute_settings(plan: Plan) -> ComputeSettings:
    """Return the device and precision of this process, and set torch up for repeatable runs."""
    device = resolve_device(plan.device)
    make_repeatable(device)
    keep_freed_memory()
    precision = resolve_precision(plan.protocol.precision, device)
    return ComputeSettings(device, precision, numerics(device, precision.name))


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads inside the block; None leaves it unchanged."""
    previous = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def _scenarios(pending: Sequence[Cell]) -> list[ScenarioSpec]:
    """Return the scenarios of the cells, each once."""
    return list({cell.scenario.name: cell.scenario for cell in pending}.values())


def _baselines(pending: Sequence[Cell], spec: ScenarioSpec) -> Iterable[Baseline]:
    """Return the baselines of the pending cells of a scenario, each once."""
    cells = [c for c in pending if c.scenario.name == spec.name and c.reference_of is None]
    return {cell.baseline.name: cell.baseline for cell in cells}.values()


def _prepare_all(
    preparer: ScenarioPreparer, plan: Plan, pending: Sequence[Cell], listener: Listener
) -> None:
    """Prepare every scenario once, so that errors stop the run before it trains.

    An unexpected error, as of a plug-in's shift, only fails the cells of its scenario.
    """
    preparer.check_model()
    # With rows for each seed, the first one stands for all.
    seeds = {cell.scenario.name: cell.seed for cell in reversed(pending)}
    for spec in _scenarios(pending):
        start = time.perf_counter()
        try:
            prepared = preparer.prepare(spec, seeds[spec.name])
        except PluginError as error:
            listener.note(str(error))
            continue
        seconds = time.perf_counter() - start
        scenario = prepared.scenario
        check_shared_head(plan.question, scenario)
        check_tasks(_baselines(pending, spec), scenario, plan.protocol)
        severity = scenario.report.severity
        suffix = "" if severity is None else f", severity {severity:.2f}"
        sizes = " → ".join(f"{t.name} ({len(t.train)} rows)" for t in scenario.tasks)
        listener.note(f"{scenario.name}: {sizes}{suffix} [{seconds:.1f} s]")
        for text in (*scenario.report.notes, *prepared.notes):
            listener.note(f"{scenario.name}: {text}")
        for scorer in prepared.scorers:
            listener.note(f"{scenario.name}: {scorer.describe()}")
