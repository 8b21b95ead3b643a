"""Runs one cell, wherever that is; what goes wrong in it becomes its result."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from clbench.errors import ClbenchError
from clbench.evaluation.cell_runner import CellRunner, ComputeSettings, Outcome
from clbench.evaluation.host import host, versions
from clbench.evaluation.prepare import PreparedScenario
from clbench.evaluation.stage_cache import Stages
from clbench.methods.base import METHODS, Method
from clbench.results.cell import CellResult
from clbench.results.scores import scores_of
from clbench.suite.plan import Cell
from clbench.suite.schema import ScenarioSpec
from clbench.training.device import PeakMemory


class Scenes(Protocol):
    """Where a cell's rows come from."""

    def scene(self, spec: ScenarioSpec) -> PreparedScenario:
        """The scene of `spec`; raises what makes it impossible."""


class Reporter(Protocol):
    """Who is told how a cell goes on; a listener, or what stands for it in a worker."""

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Called after a training step; stages and steps counted from 1 when done."""

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Called at the points of a stage's curves; stages count from 1."""


def run_cell(
    cell: Cell, scenes: Scenes, setting: ComputeSettings, cache: Stages, reporter: Reporter
) -> CellResult:
    """Run one cell; what it raises becomes a failed result with its reason."""
    started = datetime.now(UTC)
    memory = PeakMemory(setting.device)
    method: Method | None = None
    common: dict[str, Any] = {
        **_identity(cell),
        "versions": versions(),
        "host": host(setting.device),
        "started": started.isoformat(timespec="seconds"),
    }
    try:
        scene = scenes.scene(cell.scenario)
        common["tasks"] = [name for name, _ in scene.scenario.columns]
        common["scenario_report"] = scene.scenario.report.to_json()
        method = METHODS.get(cell.baseline.method)(**cell.baseline.settings)
        common["keeps_rows"] = method.keeps_rows
        stages = 1 if cell.reference_of is not None else len(scene.train)

        def progress(stage: int, step: int, steps: int) -> None:
            reporter.progress(cell, stage + 1, stages, step, steps)

        def point(stage: int, step: int, values: Mapping[str, float]) -> None:
            reporter.point(cell, stage + 1, step, values)

        carrier = CellRunner(cell, scene, method, setting, cache, progress, points=point)
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


def failed(cell: Cell, reason: str) -> CellResult:
    """The result of a cell that could not be run to its end."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return CellResult(**_identity(cell), status="failed", reason=reason, started=now, finished=now)


def _identity(cell: Cell) -> dict[str, Any]:
    return {
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
        "search": {} if cell.baseline.cost is None else cell.baseline.cost.model_dump(),
    }


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


def _settings(cell: Cell, method: Method | None, setting: ComputeSettings) -> dict[str, Any]:
    return {
        "protocol": cell.protocol.model_dump(mode="json"),
        "precision": setting.precision.name,
        "method": dict(cell.baseline.settings) if method is None else method.settings(),
        "sources": dict(cell.baseline.sources),
        "scenario": {"shift": cell.scenario.shift, **cell.scenario.settings},
    }


def _outcome(cell: Cell, scene: PreparedScenario, outcome: Outcome) -> dict[str, Any]:
    tasks = scene.scenario.tasks
    rows = outcome.rows if outcome.before is None else [outcome.before, *outcome.rows]
    matrix = [scene.scenario.main_scores(row) for row in rows]
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
            "memory_mb": trace.memory_bytes / 1e6 or None,
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
        scores = {"reference": next(score for score in matrix[0] if score is not None)}
    return {
        "metrics": rows,
        "R": matrix,
        "scores": scores,
        "stages": stages,
        "train_seconds": sum(trace.train_seconds for trace in outcome.traces),
        "training_memory_mb": outcome.traces[-1].memory_bytes / 1e6 or None,
        "notes": [*scene.scenario.report.notes, *outcome.notes],
    }
