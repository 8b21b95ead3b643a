"""Run the pending cells of a plan, and write each result as soon as it is ready."""

import os
import platform
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cache as cache_result
from importlib.metadata import version
from pathlib import Path
from threading import Timer
from typing import Any

import torch
from pydantic import ValidationError

from clbench.core import __version__
from clbench.core.errors import PluginError, describe_errors, explain
from clbench.core.files import check_folder, plain
from clbench.core.user_code import GlobalState
from clbench.measure.rows import PreparedScenario
from clbench.models.locate import display_name
from clbench.models.pooling import unread_modules
from clbench.results.cell import CellResult
from clbench.results.score_tables import scores_frame, to_csv
from clbench.results.scores import scores_of
from clbench.results.store import Store
from clbench.runner.cell_runner import CellRunner, CellScores
from clbench.runner.cell_stages import ComputeSettings, stages_to_share
from clbench.runner.check import InputChecker
from clbench.runner.prepare import ScenarioPreparer
from clbench.runner.resources import Resources, check_reachable
from clbench.runner.run_state import Listener, RunState, read_run_state
from clbench.runner.stage_cache import StageCache
from clbench.shifts.scenario import Scenario
from clbench.suite.plan import Cell, Plan, once
from clbench.suite.validation import check_shared_head, check_tasks
from clbench.training import device as devices
from clbench.training.memory import PeakMemory

SCORES_EVERY = 5.0
"""Least seconds between rewrites of ``scores.csv`` while cells finish."""
SCORES_SHARE = 0.05
"""Largest share of the time to spend on them: each takes longer the more cells there are."""
PACKAGES = ("torch", "transformers", "datasets", "numpy", "scikit-learn", "tokenizers")
CellRows = tuple[Cell, PreparedScenario]
TRIMMED = (
    "Kept stages: with trim_embeddings, another order can continue from a kept stage only if it "
    "has the same tasks. Set trim_embeddings = false in [protocol]."
)
"""Note on stages that hardly any other order can use."""
PATIENCE = 15.0
"""Seconds of preparing a scenario after which a note says so."""
STILL_PREPARING = (
    "still preparing: reading, tokenising and embedding rows. With a large model this can take "
    "minutes; embeddings are kept for later runs."
)


def run_plan(state: RunState, listener: Listener, executor: "Executor") -> list[CellResult]:
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
        model = plan.protocol.model, plan.protocol.revision
        if not plan.protocol.is_language_model and (unread := unread_modules(*model)):
            listener.note(f"{model[0]}: {unread} in modules.json are not read.")
        for text in dict.fromkeys(note for cell in plan.cells for note in cell.notes):
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
        if all(result.status == "ok" for result in new):  # else for the next try
            StageCache(plan.out / "stages").drop_of_run()
    return state.with_new(new)


def check_inputs(
    plan: Plan, pending: Sequence[Cell], resources: Resources, listener: Listener
) -> list[CellRows]:
    """Raise what `run_plan` would raise before training; write and embed nothing.

    Not noticed: errors that only the embeddings of rows show. Return the cells of the scenarios
    without embeddings, with their rows, for `clbench.runner.fit.needs`.
    """
    device = resources.device_here(plan.device)
    checker = InputChecker.of(plan, device)
    check_folder(plan.out)
    check_reachable(resources)
    for text in checker.check_model():
        listener.note(text)
    cells: list[CellRows] = []
    for spec in once(cell.scenario for cell in pending):
        try:
            prepared = checker.check(spec)
        except PluginError as error:
            listener.note(str(error))
            continue
        if prepared is not None:
            _check_methods(plan, pending, prepared.scenario)
            own = (c for c in pending if c.scenario.name == spec.name and c.reference_of is None)
            cells += [(cell, prepared) for cell in own]
    if text := devices.precision_note(plan.protocol.precision, device):
        listener.note(text)
    return cells


def _check_methods(plan: Plan, pending: Sequence[Cell], scenario: Scenario) -> None:
    """Raise a ClbenchError if the question or a pending method does not fit a scenario's tasks."""
    check_shared_head(plan.question, scenario)
    cells = [c for c in pending if c.scenario.name == scenario.name and c.reference_of is None]
    check_tasks(once(cell.baseline for cell in cells), scenario, plan.protocol)


def _prepare_all(
    preparer: ScenarioPreparer, plan: Plan, pending: Sequence[Cell], listener: Listener
) -> None:
    """Prepare every scenario once, so that errors stop the run before it trains.

    An unexpected error, as of a plug-in's shift, only fails the cells of its scenario.
    """
    for text in preparer.check_model():
        listener.note(text)
    # With rows for each seed, the first one stands for all.
    seeds = {cell.scenario.name: cell.seed for cell in reversed(pending)}
    for spec in once(cell.scenario for cell in pending):
        start = time.perf_counter()
        slow = Timer(PATIENCE, listener.note, [f"{spec.name}: {STILL_PREPARING}"])
        slow.start()
        try:
            prepared = preparer.prepare(spec, seeds[spec.name])
        except PluginError as error:
            listener.note(str(error))
            continue
        finally:
            slow.cancel()
        seconds = time.perf_counter() - start
        scenario = prepared.scenario
        _check_methods(plan, pending, scenario)
        severity = scenario.report.severity
        suffix = "" if severity is None else f", severity {severity:.2f}"
        sizes = " → ".join(f"{t.name} ({len(t.train)} rows)" for t in scenario.tasks)
        listener.note(f"{scenario.name}: {sizes}{suffix} [{seconds:.1f} s]")
        for text in (*scenario.report.notes, *prepared.notes):
            listener.note(f"{scenario.name}: {text}")
        for scorer in prepared.scorers:
            listener.note(f"{scenario.name}: {scorer.describe()}")


class Executor:
    """Runs one cell after another in this process, with `threads` torch threads.

    `RayExecutor` runs cells in workers instead.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    def device(self, plan: Plan) -> torch.device:
        """Return the device on which this process embeds rows."""
        return devices.resolve_device(plan.device)

    def ready(self, plan: Plan) -> AbstractContextManager[object]:
        """Return a context to prepare and run cells in; it raises if no cell can ever run."""
        return nullcontext()

    def results(
        self, plan: Plan, pending: Sequence[Cell], preparer: ScenarioPreparer, listener: Listener
    ) -> Generator[CellResult, None, None]:
        """Yield the results of the pending cells, each as soon as it is ready.

        Closing the generator stops the running cells.
        """
        if pending and (text := devices.precision_note(plan.protocol.precision, preparer.device)):
            listener.note(text)
        sharing = stages_to_share(pending)
        cache = StageCache(plan.out / "stages", sharing, keeps_last=plan.keep_stages)

        def prepare(cell: Cell) -> PreparedScenario:
            return preparer.prepare(cell.scenario, cell.seed)

        with computing(plan, self.threads) as compute:
            for cell in pending:
                listener.cell_started(cell)
                yield run_cell(cell, prepare, compute, cache, listener)


@contextmanager
def computing(plan: Plan, threads: int | None) -> Iterator[ComputeSettings]:
    """Set torch up for repeatable runs; yield the device and precision of this process.

    Inside the block torch has `threads` threads; None leaves their number unchanged.
    """
    device = devices.resolve_device(plan.device)
    devices.make_repeatable(device)
    devices.keep_freed_memory()
    precision = devices.resolve_precision(plan.protocol.precision, device)
    previous = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    identity = {
        "device": _device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "precision": precision.name,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }
    try:
        yield ComputeSettings(device, precision, identity)
    finally:
        torch.set_num_threads(previous)
        devices.return_freed_memory()


def run_cell(
    cell: Cell,
    prepare: Callable[[Cell], PreparedScenario],
    compute: ComputeSettings,
    cache: StageCache,
    listener: Listener,
) -> CellResult:
    """Run a cell and return its result; any error, also in `prepare`, gives a failed one."""
    memory, state = PeakMemory(compute.device), GlobalState()
    result = _identity(cell) | {"versions": versions(), "host": _host(compute.device)}
    settings: dict[str, Any] = {
        "protocol": cell.protocol.model_dump(mode="json"),
        "precision": compute.precision.name,
        "method": dict(cell.baseline.settings),
        "sources": dict(cell.baseline.sources),
        "scenario": {"shift": cell.scenario.shift, **cell.scenario.settings},
    }
    result["settings"] = settings
    try:
        prepared = prepare(cell)
        result["tasks"] = [name for name, _ in prepared.scenario.columns]
        result["floors"] = prepared.floors
        result["scenario_report"] = prepared.scenario.report.to_json()
        method = cell.baseline.build()
        settings["method"], result["keeps_rows"] = method.settings(), method.keeps_rows
        result["needs_task_id"], result["control"] = method.needs_task_id, method.control
        settings["holds_head"] = method.holds_head
        runner = CellRunner(cell, prepared, method, compute, cache, listener)
        finished = runner.run()
        if not cell.protocol.is_language_model:
            declared, own = cell.protocol.pooling, runner.context.model.family.pooling
            settings["pooling"] = own if declared == "auto" else declared
        result |= _measured(cell, prepared, finished)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        result |= {"status": "failed", "reason": explain(error)}
    finally:
        changed = state.restore()
    if changed:
        result["notes"] = [
            *result.get("notes", []),
            f"method {cell.baseline.method!r} changed {' and '.join(changed)} for the whole "
            "process, which may have changed its scores; put back after the cell.",
        ]
    try:
        result |= {"peak_memory_mb": memory.megabytes(), "finished": now()}
        return CellResult(**plain(result))
    except ValidationError as error:  # a metric or a method recorded what no file can hold
        return failed(cell, f"the result is not valid: {describe_errors(error)[0]}")
    except Exception as error:  # a method broke what this process needs, such as open files
        return failed(cell, explain(error))


def failed(cell: Cell, reason: str) -> CellResult:
    """Return a failed result for a cell that could not run."""
    result = _identity(cell) | {"status": "failed", "reason": reason, "finished": now()}
    return CellResult(**plain(result))


@cache_result
def versions() -> dict[str, str]:
    """Return the versions of the packages that can change a score."""
    own = {"clbench": __version__, "python": platform.python_version()}
    return own | {name: version(name) for name in PACKAGES}


def _host(device: torch.device) -> dict[str, Any]:
    """Return the machine and the training device, without names of people or hosts."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": _device_name(device),
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor() if device.type == "cpu" else f"{device.type} on {_processor()}"


@cache_result
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    match = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _identity(cell: Cell) -> dict[str, Any]:
    return {
        "key": cell.key,
        "fingerprint": cell.fingerprint,
        "recipe": dict(cell.recipe),
        "scenario": cell.scenario.name,
        "shift": cell.scenario.shift,
        "baseline": cell.baseline.name,
        "method": cell.baseline.method,
        "family": cell.baseline.family,
        "model": display_name(cell.protocol.model, cell.protocol.revision),
        "seed": cell.seed,
        "reference_of": cell.reference_of,
        "search": {} if cell.baseline.cost is None else cell.baseline.cost.to_table(),
        "started": now(),
    }


def _measured(cell: Cell, prepared: PreparedScenario, finished: CellScores) -> dict[str, Any]:
    matrix = [prepared.scenario.main_scores(row) for row in finished.metrics]
    if cell.reference_of is None:
        scores = scores_of(matrix)
    else:
        scores = {"reference": next(score for score in matrix[0] if score is not None)}
    stages = finished.stages
    return {
        **vars(finished),
        "status": "ok",
        "R": matrix,
        "scores": scores,
        "stages": [dict(stage) for stage in stages],
        "train_seconds": sum(stage.train_seconds for stage in stages),
        "training_memory_mb": stages[-1].memory_mb,
        "notes": [*cell.notes, *prepared.scenario.report.notes, *finished.notes],
    }
