"""What the driver sends to workers once for all cells."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import clbench
from clbench.errors import PluginError
from clbench.evaluation.cell_resources import CellResources
from clbench.evaluation.ray_worker import PASSED_ON, WorkerSetup
from clbench.suite.plan import Plan
from clbench.suite.plugins import registries


def pack(plan: Plan, needs: CellResources) -> WorkerSetup:
    """What every cell of the run needs in a worker.

    Raises
    ------
    PluginError
        If a method or model of the user's script cannot be sent.
    """
    lock = plan.out / ".lock"
    return WorkerSetup(
        plan=replace(plan, cells=(), plugins=(), out=plan.out.resolve()),
        threads=needs.threads,
        version=clbench.__version__,
        folder=str(Path.cwd()),
        lock=lock.read_text(encoding="utf-8"),
        path=tuple(sys.path),
        environment={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        plugins={str(plugin.path): plugin.path.read_bytes() for plugin in plan.plugins},
        registered=_own_registrations(plan),
    )


def _own_registrations(plan: Plan) -> dict[str, dict[str, Any]]:
    """What a script or notebook registered, which workers could not import.

    Raises
    ------
    PluginError
        If such an entry cannot be sent.
    """
    from ray import cloudpickle

    plugins = {plugin.module for plugin in plan.plugins}
    found: dict[str, dict[str, Any]] = {}
    for registry in registries():
        if registry.kind not in ("method", "model"):
            continue  # shifts and tasks have done their work when rows are sent
        for name in registry.names():
            module = registry.where(name).partition(":")[0]
            if module.partition(".")[0] == "clbench" or module in plugins:
                continue
            entry = registry.get(name) if module in ("__main__", "__mp_main__") else None
            if entry is None:
                continue
            try:
                cloudpickle.dumps(entry)
            except Exception as fault:
                raise PluginError(
                    f"{registry.kind} {name!r} cannot be sent to workers "
                    f"({type(fault).__name__}: {fault}). Put it into a file and give it as "
                    "--plugin."
                ) from fault
            found.setdefault(registry.kind, {})[name] = entry
    return found
