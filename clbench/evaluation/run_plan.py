"""Run the pending cells of a plan, and write each result at once."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Protocol

import torch

from clbench.errors import PluginError
from clbench.evaluation.cell_runner import ComputeSettings
from clbench.evaluation.listener import Listener
from clbench.evaluation.prepare import ScenarioPreparer
from clbench.evaluation.run_cell import numerics, run_cell
from clbench.evaluation.run_state import RunState, read_run_state
from clbench.evaluation.stage_cache import StageCache
from clbench.results.cell import CellResult
from clbench.results.scores import scores_frame, to_csv
from clbench.results.store import Store
from clbench.suite.plan import Cell, Plan
from clbench.training.device import (
    keep_freed_memory,
    make_repeatable,
    resolve_device,
    resolve_precision,
)

SCORES_EVERY = 5.0
"""Seconds between rewrites of ``scores.csv`` while cells finish."""


class Executor(Protocol):
    """Where cells run."""

    def device(self, plan: Plan) -> torch.device:
        """Return the device of this process, on which rows are embedded."""

    def ready(self, plan: Plan) -> AbstractContextManager[object]:
        """Return a context to prepare scenarios and run in; raise if nothing can run there."""

    def results(
        self, plan: Plan, pending: Sequence[Cell], preparer: ScenarioPreparer, listener: Listener
    ) -> Generator[CellResult, None, None]:
        """Yield the results of the pending cells, each as soon as it is ready.

        Closing the generator stops the cells that still run.
        """


class InProcessExecutor:
    """Runs one cell after another in this process, on `threads` threads of torch."""

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
        cache = StageCache(plan.out / "stages")
        with thread_count(self.threads):
            settings = compute_settings(plan)
            for cell in pending:
                listener.cell_started(cell)
                yield run_cell(cell, preparer.prepare, settings, cache, listener)


def run_plan(state: RunState, listener: Listener, executor: Executor) -> list[CellResult]:
    """Run the pending cells of a plan.

    Errors of the data or the model are raised before the first cell trains; later errors fail
    only their own cell.

    The folder is read again if it has changed since `state` was read. Returns all cells of the
    folder, in the order of tables.

    Raises
    ------
    ClbenchError
        If a task, a shift or the model is wrong, or the folder is in use.
    """
    plan = state.plan
    store = Store(plan.out)
    preparer = ScenarioPreparer(
        plan.protocol,
        data=plan.data,
        base=plan.suite.base,
        own=plan.suite.file.task,
        device=executor.device(plan),
        saved=plan.out / "scenarios",
    )
    with store.lock(), executor.ready(plan):
        if not state.is_current():
            state = read_run_state(plan, replace=state.replace)
        _prepare_all(preparer, state.pending, listener)
        for text in state.put_aside(store):
            listener.note(text)
        store.write_suite(plan.resolved())
        listener.started(len(plan.cells), len(state.pending))
        new: list[CellResult] = []

        def write_scores() -> None:
            if cells := state.with_new(new):
                store.write_scores(to_csv(scores_frame(cells)))

        written = 0.0
        try:
            with closing(executor.results(plan, state.pending, preparer, listener)) as results:
                for result in results:
                    store.write_cell(result)
                    new.append(result)
                    if time.monotonic() - written > SCORES_EVERY:
                        write_scores()
                        written = time.monotonic()
                    listener.cell_finished(result)
        finally:
            # Also after an interruption, so that the table holds every cell on disk.
            write_scores()
    return state.with_new(new)


def compute_settings(plan: Plan) -> ComputeSettings:
    """Return the device and precision of this process, and prepare it for training."""
    device = resolve_device(plan.device)
    make_repeatable(device)
    keep_freed_memory()
    precision = resolve_precision(plan.protocol.precision, device)
    return ComputeSettings(device, precision, numerics(device, precision.name))


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """Set the number of torch's threads inside the block; None leaves it unchanged."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _prepare_all(preparer: ScenarioPreparer, pending: Sequence[Cell], listener: Listener) -> None:
    """Prepare every scenario once, so that a wrong one stops the run before it trains.

    If a plug-in's shift or task breaks, only its own cells fail.
    """
    for spec in {cell.scenario.name: cell.scenario for cell in pending}.values():
        started = time.perf_counter()
        try:
            prepared = preparer.prepare(spec)
        except PluginError as error:
            listener.note(str(error))
            continue
        seconds = time.perf_counter() - started
        scenario = prepared.scenario
        severity = scenario.report.severity
        suffix = "" if severity is None else f", severity {severity:.2f}"
        sizes = " → ".join(f"{t.name} ({len(t.train)} rows)" for t in scenario.tasks)
        listener.note(f"{scenario.name}: {sizes}{suffix} [{seconds:.1f} s]")
        for scorer in prepared.scorers:
            listener.note(f"{scenario.name}: {scorer.describe()}")
