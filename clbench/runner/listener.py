"""Listeners to the progress of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clbench.results.cell import CellResult

if TYPE_CHECKING:
    from clbench.suite.plan import Cell


class Listener:
    """Base of listeners, which does nothing; called in the process that runs the plan."""

    def started(self, total_cells: int, pending: int) -> None:
        """Called once with the numbers of all cells and of cells to run."""

    def cell_started(self, cell: Cell) -> None:
        """Called before a cell runs."""

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Called after a training step; `stage` and `step` count from 1."""

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Called at the points of a stage's curves with ``loss``, ``lr`` and scores.

        Stages count from 1. With workers, the last points of a cell may be lost.
        """

    def cell_finished(self, result: CellResult) -> None:
        """Called when the result of a finished or failed cell is on disk."""

    def note(self, text: str) -> None:
        """Called with a line for the user."""
