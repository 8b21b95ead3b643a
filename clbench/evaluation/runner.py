"""Runs the cells of a plan one after another, and writes each result when it is there."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clbench.errors import ClbenchError
from clbench.evaluation.carry import Carrier, Numerics, Outcome
from clbench.evaluation.host import host, numerics, versions
from clbench.evaluation.listener import Listener
from clbench.evaluation.scenes import Scene, SceneBuilder
from clbench.evaluation.scores import scores_of
from clbench.evaluation.stage_cache import StageCache
from clbench.methods.base import Method
from clbench.methods.registry import METHODS
from clbench.results.cell import CellResult
from clbench.results.store import Store
from clbench.results.table import scores_frame, to_csv
from clbench.suite.plan import Cell, Plan, validate
from clbench.training.device import (
    PeakMemory,
    keep_freed_memory,
    make_repeatable,
    resolve_device,
    resolve_precision,
)

SCORES_EVERY = 5.0
"""Seconds between rewrites of ``scores.csv`` while cells finish."""


def run_plan(plan: Plan, listener: Listener) -> None:
    """Run every cell of `plan` that is not finished.

    Everything that can be wrong with the suite, the data or the model is found before the
    first cell trains. What fails in a cell afterwards fails that cell only.

    Raises
    ------
    ClbenchError
        If a setting, a task, a shift or the model is wrong, or the folder is in use.
    """
    device = resolve_device(plan.device)
    store = Store(plan.out)
    builder = SceneBuilder(
        plan.protocol,
        data=plan.data,
        base=plan.base,
        own=plan.suite.file.task,
        device=device,
        saved=plan.out / "scenarios",
    )
    present = store.read()
    done = store.finished(plan.cells, present=present.cells)
    pending = [cell for cell in plan.cells if cell.key not in done]
    validate(plan, pending)
    with store.lock():
        cache = StageCache(plan.out / "stages")
        cache.check()
        _build_all(builder, pending, listener)
        store.write_suite(plan.resolved())
        make_repeatable(device)
        keep_freed_memory()
        listener.started(len(plan.cells), len(pending))
        _run_cells(plan, pending, builder, cache, store, listener, present.cells)


def _build_all(builder: SceneBuilder, pending: Sequence[Cell], listener: Listener) -> None:
    """Make every scenario once, so that a wrong one stops the run before it trains.

    A plug-in's shift or task that breaks is no wrong input: its own cells fail, with the
    reason, and the others are run.
    """
    for spec in {cell.scenario.name: cell.scenario for cell in pending}.values():
        started = time.perf_counter()
        try:
            scenario = builder.scene(spec).scenario
        except ClbenchError:
            raise
        except Exception as fault:
            listener.note(f"{spec.name} cannot be built: {explain(fault)}")
            continue
        seconds = time.perf_counter() - started
        severity = scenario.report.severity
        told = "" if severity is None else f", severity {severity:.2f}"
        sizes = " → ".join(f"{t.name} ({len(t.train)} rows)" for t in scenario.tasks)
        listener.note(f"{scenario.name}: {sizes}{told} [{seconds:.1f} s]")


def _run_cells(
    plan: Plan,
    pending: Sequence[Cell],
    builder: SceneBuilder,
    cache: StageCache,
    store: Store,
    listener: Listener,
    present: Sequence[CellResult],
) -> None:
    device = resolve_device(plan.device)
    precision = resolve_precision(plan.protocol.precision, device)
    setting = Numerics(device, precision, numerics(device, precision.name))
    results = {result.key: result for result in present}
    written = 0.0
    for cell in pending:
        listener.cell_started(cell)
        result = run_cell(cell, builder, setting, cache, listener)
        store.write_cell(result)
        results[result.key] = result
        if time.monotonic() - written > SCORES_EVERY:
            store.write_scores(to_csv(scores_frame(list(results.values()))))
            written = time.monotonic()
        listener.cell_finished(result)


def run_cell(
    cell: Cell, builder: SceneBuilder, setting: Numerics, cache: StageCache, listener: Listener
) -> CellResult:
    """Run one cell; what it raises becomes a failed result with its reason."""
    started = datetime.now(UTC)
    memory = PeakMemory(setting.device)
    method: Method | None = None
    common: dict[str, Any] = {
        "key": cell.key,
        "fingerprint": cell.fingerprint,
        "recipe": dict(cell.recipe),
        "scenario": cell.scenario.name,
        "shift": cell.scenario.shift,
        "baseline": cell.baseline.name,
        "method": cell.baseline.method,
        "model": cell.protocol.model,
        "seed": cell.seed,
        "reference_of": cell.reference_of,
        "versions": versions(),
        "host": host(setting.device),
        "started": started.isoformat(timespec="seconds"),
    }
    try:
        scene = builder.scene(cell.scenario)
        common["tasks"] = [task.name for task in scene.scenario.tasks]
        common["scenario_report"] = scene.scenario.report.to_json()
        method = METHODS.get(cell.baseline.method)(**cell.baseline.settings)
        common["keeps_rows"] = method.keeps_rows
        stages = 1 if cell.reference_of is not None else len(scene.train)

        def progress(stage: int, step: int, steps: int) -> None:
            listener.progress(cell, stage + 1, stages, step, steps)

        carrier = Carrier(cell, scene, method, setting, cache, progress)
        outcome = carrier.run()
        common |= _outcome(cell, scene, outcome)
        status, reason = "ok", None
    except (Exception, SystemExit) as fault:
        status, reason = "failed", explain(fault)
    common["settings"] = _settings(cell, method, setting)
    return CellResult(
        **common,
        status=status,
        reason=reason,
        peak_memory_mb=memory.megabytes(),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def explain(fault: BaseException) -> str:
    """One line: the message, and for faults that are not ours the place in the code."""
    text = " ".join(str(fault).split())
    if isinstance(fault, ClbenchError):
        return text
    frame = traceback.extract_tb(fault.__traceback__)[-1]
    inside = [
        entry
        for entry in traceback.extract_tb(fault.__traceback__)
        if "site-packages" not in Path(entry.filename).parts
    ]
    frame = inside[-1] if inside else frame
    place = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    return (
        f"{type(fault).__name__}: {text} ({place})" if text else f"{type(fault).__name__} ({place})"
    )


def _settings(cell: Cell, method: Method | None, setting: Numerics) -> dict[str, Any]:
    return {
        "protocol": cell.protocol.model_dump(mode="json"),
        "precision": setting.precision.name,
        "method": dict(cell.baseline.settings) if method is None else method.settings(),
        "sources": dict(cell.baseline.sources),
        "scenario": {"shift": cell.scenario.shift, **cell.scenario.settings},
    }


def _outcome(cell: Cell, scene: Scene, outcome: Outcome) -> dict[str, Any]:
    tasks = scene.scenario.tasks
    matrix = [
        [
            None if values is None else values[task.metrics[0]]
            for task, values in zip(tasks, row, strict=True)
        ]
        for row in outcome.rows
    ]
    stages = [
        {
            "task": tasks[index].name,
            "rows": trace.rows,
            "steps": trace.steps,
            "epochs": round(trace.steps / trace.epoch_steps, 4),
            "examples": trace.examples,
            "tokens": trace.tokens,
            "train_seconds": trace.train_seconds,
            "eval_seconds": trace.probe_seconds + seconds,
            "cached": cached,
            "curves": trace.curves,
        }
        for index, trace, seconds, cached in zip(
            range(len(tasks)) if cell.reference_of is None else [cell.reference_of],
            outcome.traces,
            outcome.eval_seconds,
            outcome.cached,
            strict=True,
        )
    ]
    if cell.reference_of is None:
        scores = scores_of(matrix)
    else:
        scores = {"reference": matrix[0][cell.reference_of]}
    return {
        "metrics": outcome.rows,
        "R": matrix,
        "scores": scores,
        "stages": stages,
        "train_seconds": sum(trace.train_seconds for trace in outcome.traces),
        "notes": [*scene.scenario.report.notes, *outcome.notes],
    }
