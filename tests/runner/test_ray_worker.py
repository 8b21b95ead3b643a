"""What a Ray worker applies before each cell; needs no Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clbench.core import __version__
from clbench.methods.base import METHODS
from clbench.runner.ray_worker import WorkerSetup

PLUGIN = """import clbench


@clbench.method("of-driver")
class OfDriver(clbench.Method):
    strength: float = {0}
"""


def test_a_worker_without_the_plugin_file_runs_several_cells(tmp_path: Path) -> None:
    plugins = {str(tmp_path / "not here" / "own.py"): PLUGIN.format(0.5).encode()}
    same: dict[str, Any] = {"version": __version__, "folder": str(tmp_path / "not here")}
    same |= {"lock": "", "path": (), "environment": {}, "registered": {}}
    setup = WorkerSetup(plan=None, threads=1, plugins=plugins, **same)  # type: ignore[arg-type]
    setup.apply()
    first = METHODS.get("of-driver")
    setup.apply()
    assert METHODS.get("of-driver") is first
    # The plug-in was edited before the driver's next run.
    edited = {path: PLUGIN.format(0.25).encode() for path in plugins}
    replace(setup, plugins=edited).apply()
    assert METHODS.get("of-driver")().strength == 0.25
