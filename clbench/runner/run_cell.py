"""Run one cell in any process; an error becomes a failed result."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache as cache_result
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from clbench.core import __version__
from clbench.core.errors import describe_errors
from clbench.core.user_code import GlobalState, explain
from clbench.measure.rows import PreparedScenario
from clbench.methods.base import METHODS
from clbench.results.cell import CellResult, plain
from clbench.results.scores import scores_of
from clbench.runner.cell_runner import CellRunner, CellScores
from clbench.runner.cell_stages import ComputeSettings
from clbench.runner.listener import Listener
from clbench.runner.stage_cache import StageCache
from clbench.suite.plan import Cell
from clbench.training.memory import PeakMemory

PACKAGES = ("torch", "transformers", "datasets", "numpy", "scikit-learn", "tokenizers")


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
    result["settings"] = settings = {
        "protocol": cell.protocol.model_dump(mode="json"),
        "precision": compute.precision.name,
        "method": dict(cell.baseline.settings),
        "sources": dict(cell.baseline.sources),
        "scenario": {"shift": cell.scenario.shift, **cell.scenario.settings},
    }
    try:
        prepared = prepare(cell)
        result["tasks"] = [name for name, _ in prepared.scenario.columns]
        result["floors"] = prepared.floors
        result["scenario_report"] = prepared.scenario.report.to_json()
        method = METHODS.get(cell.baseline.method)(**cell.baseline.settings)
        settings["method"], result["keeps_rows"] = method.settings(), method.keeps_rows
        result["needs_task_id"], result["control"] = method.needs_task_id, method.control
        finished = CellRunner(cell, prepared, method, compute, cache, listener).run()
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
        result |= {"peak_memory_mb": memory.megabytes(), "finished": _now()}
        return CellResult(**plain(result))
    except ValidationError as error:  # a metric or a method recorded what no file can hold
        return failed(cell, f"the result is not valid: {describe_errors(error)[0]}")
    except Exception as error:  # a method broke what this process needs, such as open files
        return failed(cell, explain(error))


def failed(cell: Cell, reason: str) -> CellResult:
    """Return a failed result for a cell that could not run."""
    result = _identity(cell) | {"status": "failed", "reason": reason, "finished": _now()}
    return CellResult(**plain(result))


@cache_result
def versions() -> dict[str, str]:
    """Return the versions of the packages that can change a score."""
    own = {"clbench": __version__, "python": platform.python_version()}
    return own | {name: version(name) for name in PACKAGES}


def numerics(device: torch.device, precision: str) -> dict[str, Any]:
    """Return what can change the last digits of a stage besides its recipe."""
    return {
        "device": _device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "precision": precision,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


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


def _now() -> str:
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
        "model": cell.protocol.model,
        "seed": cell.seed,
        "reference_of": cell.reference_of,
        "search": {} if cell.baseline.cost is None else cell.baseline.cost.to_table(),
        "started": _now(),
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
        "notes": [*prepared.scenario.report.notes, *finished.notes],
    }
