"""Cells without what a reader does not need, so that many fit into memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from clbench.results.cell import CellResult


class Light:
    """Takes recipes, further metrics and scenario reports from cells, and most curves.

    Settings, versions and hosts that are equal in several cells are held once. Curves are the
    largest part of a cell.

    Parameters
    ----------
    curves
        Whether a cell keeps its curves; by default none does.
    """

    def __init__(self, curves: Callable[[CellResult], bool] = lambda cell: False) -> None:
        self._curves = curves
        self._shared: dict[str, Any] = {}

    def __call__(self, cell: CellResult) -> CellResult:
        """The cell, lighter."""
        changes: dict[str, Any] = {"recipe": {}, "metrics": [], "scenario_report": {}}
        changes["settings"] = self._once(
            {section: self._once(values) for section, values in cell.settings.items()}
        )
        changes |= {name: self._once(getattr(cell, name)) for name in ("versions", "host")}
        if not self._curves(cell):
            bare = [stage.model_copy(update={"curves": {}}) for stage in cell.stages]
            changes["stages"] = bare
        return cell.model_copy(update=changes)

    def _once(self, value: Any) -> Any:
        return self._shared.setdefault(json.dumps(value, sort_keys=True), value)
