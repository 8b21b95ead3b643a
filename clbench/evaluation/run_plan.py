"""Runs the cells of a plan, and writes each result when it is there."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Protocol

import torch

from clbench.errors import ClbenchError
from clbench.evaluation.cell_runner import ComputeSettings
from clbench.evaluation.host import numerics
from clbench.evaluation.listener import Listener
from clbench.evaluation.prepare import ScenarioPreparer
from clbench.evaluation.run_cell import explain, run_cell
from clbench.evaluation.stage_cache import StageCache
from clbench.results.cell import CellResult
from clbench.results.scores import scores_frame, to_csv
from clbench.results.store import Store
from clbench.suite.plan import Cell, Plan, validate
from clbench.training.device import (
    keep_freed_memory,
    make_repeatable,
    resolve_device,
    resolve_precision,
)

SCORES_EVERY = 5.0
"""Seconds between rewrites of ``scores.csv`` while cells finish."""


class Executor(Protocol):
    """Where cells are run."""

    def device(self, plan: Plan) -> torch.device:
        """The device of this process, on which rows are embedded."""

    def ready(self, plan: Plan) -> AbstractContextManager[object]:
        """Entered before anything is built; raises what makes running there impossible."""

    def results(
        self, plan: Plan, pending: Sequence[Cell], builder: ScenarioPreparer, listener: Listener
    ) -> Generator[CellResult, None, None]:
        """The results of the pending cells, each as soon as it is there.

        Closing the iterator ends what still runs.
        """


class InProcessExecutor:
    """Runs one cell after another in this process.

    Parameters
    ----------
    threads
        Processor threads of torch; None leaves them as they are.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    def device(self, plan: Plan) -> torch.device:
        """The plan's."""
        return resolve_device(plan.device)

    def ready(self, plan: Plan) -> AbstractContextManager[object]:
        """Nothing to be done."""
        return nullcontext()

    def results(
        self, plan: Plan, pending: Sequence[Cell], builder: ScenarioPreparer, listener: Listener
    ) -> Generator[CellResult, None, None]:
        """The results in the order of the cells."""
        cache = StageCache(plan.out / "stages")
        with thread_count(self.threads):
            setting = numbers(plan)
            for cell in pending:
                listener.cell_started(cell)
                yield run_cell(cell, builder, setting, cache, listener)


def run_plan(plan: Plan, listener: Listener, executor: Executor | None = None) -> None:
    """Run every cell of `plan` that is not finished.

    Everything that can be wrong with the suite, the data or the model is found before the
    first cell trains. What fails in a cell afterwards fails that cell only.

    Parameters
    ----------
    plan
        What to run.
    listener
        Is told how it goes on.
    executor
        Where; by default in this process.

    Raises
    ------
    ClbenchError
        If a setting, a task, a shift or the model is wrong, or the folder is in use.
    """
    executor = executor or InProcessExecutor()
    store = Store(plan.out)
    builder = ScenarioPreparer(
        plan.protocol,
        data=plan.data,
        base=plan.base,
        own=plan.suite.file.task,
        device=executor.device(plan),
        saved=plan.out / "scenarios",
    )
    present = store.read()
    done = store.finished(plan.cells, present=present.cells)
    pending = [cell for cell in plan.cells if cell.key not in done]
    validate(plan, pending)
    with store.lock(), executor.ready(plan):
        StageCache(plan.out / "stages").check()
        _build_all(builder, pending, listener)
        store.write_suite(plan.resolved())
        listener.started(len(plan.cells), len(pending))
        with closing(executor.results(plan, pending, builder, listener)) as results:
            _write(results, store, listener, present.cells)


def numbers(plan: Plan) -> ComputeSettings:
    """Device, precision and threads of this process, made ready for training."""
    device = resolve_device(plan.device)
    make_repeatable(device)
    keep_freed_memory()
    precision = resolve_precision(plan.protocol.precision, device)
    return ComputeSettings(device, precision, numerics(device, precision.name))


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """Let torch use so many threads meanwhile; None leaves them as they are."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _build_all(builder: ScenarioPreparer, pending: Sequence[Cell], listener: Listener) -> None:
    """Make every scenario once, so that a wrong one stops the run before it trains.

    A plug-in's shift or task that breaks is no wrong input: its own cells fail, with the
    reason, and the others are run.
    """
    for spec in {cell.scenario.name: cell.scenario for cell in pending}.values():
        started = time.perf_counter()
        try:
            scene = builder.scene(spec)
        except ClbenchError:
            raise
        except Exception as fault:
            listener.note(f"{spec.name} cannot be built: {explain(fault)}")
            continue
        seconds = time.perf_counter() - started
        scenario = scene.scenario
        severity = scenario.report.severity
        told = "" if severity is None else f", severity {severity:.2f}"
        sizes = " → ".join(f"{t.name} ({len(t.train)} rows)" for t in scenario.tasks)
        listener.note(f"{scenario.name}: {sizes}{told} [{seconds:.1f} s]")
        if scene.pretraining is not None:
            listener.note(f"{scenario.name}: {scene.pretraining.counted}")


def _write(
    results: Iterable[CellResult], store: Store, listener: Listener, present: Sequence[CellResult]
) -> None:
    """Write each result as it comes, and now and then the table of all."""
    every = {result.key: result for result in present}
    written = 0.0
    for result in results:
        store.write_cell(result)
        every[result.key] = result
        if time.monotonic() - written > SCORES_EVERY:
            store.write_scores(to_csv(scores_frame(list(every.values()))))
            written = time.monotonic()
        listener.cell_finished(result)
