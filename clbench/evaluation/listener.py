"""Who wants to know how a run goes on."""

from __future__ import annotations

from collections.abc import Mapping

from clbench.results.cell import CellResult
from clbench.suite.plan import Cell


class Listener:
    """Told of what happens, in the process that runs the plan."""

    def started(self, total_cells: int, pending: int) -> None:
        """Called once: cells in the plan, and how many of them are to be run."""

    def cell_started(self, cell: Cell) -> None:
        """Called before a cell is run."""

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Called after a training step; stages and steps counted from 1 when done."""

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Called at the points of a stage's curves, with ``loss``, ``lr`` and scores.

        Stages count from 1. A cell's last ones may not be told before it is finished.
        """

    def cell_finished(self, result: CellResult) -> None:
        """Called when a cell's result is on disk, finished or failed."""

    def note(self, text: str) -> None:
        """Called with a line for the user."""
