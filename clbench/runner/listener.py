"""Listeners to the progress of a run."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clbench.core.errors import SettingsError
from clbench.core.files import as_folder_error
from clbench.results.cell import CellResult
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


class TensorBoard(Listener):
    """Writes curves and scores to a folder, and passes all calls on to `listener`.

    Each cell is a TensorBoard run ``FOLDER/KEY`` with ``stage1/loss``, ``stage1/lr``,
    ``stage1/score of TASK`` and so on over the steps of a stage. When the cell finishes, the
    method's own curves and the final scores, such as ``final/p_o``, are added.

    Raises
    ------
    SettingsError
        If the package tensorboard is not installed.
    """

    def __init__(self, listener: Listener, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise SettingsError(
                "--tensorboard: the package tensorboard is not installed. Run "
                "pip install 'clbench[tensorboard]'."
            ) from error
        self._make = SummaryWriter
        self._listener = listener
        self._folder = folder
        self._writers: dict[str, tuple[Any, set[tuple[str, int]]]] = {}
        self.started = listener.started  # type: ignore[method-assign]
        self.cell_started = listener.cell_started  # type: ignore[method-assign]
        self.progress = listener.progress  # type: ignore[method-assign]
        self.note = listener.note  # type: ignore[method-assign]

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Write the point."""
        for name, value in values.items():
            self._write(cell.key, f"stage{stage}/{name}", step, value)
        self._writers[cell.key][0].flush()
        self._listener.point(cell, stage, step, values)

    def cell_finished(self, result: CellResult) -> None:
        """Write the points and curves that are not written yet, and the final scores."""
        for number, stage in enumerate(result.stages, 1):
            scores = stage.curves.get("scores", {})
            curves = {f"score of {task}": stage.points("scores", task) for task in scores}
            curves |= {
                name: stage.points(name) for name in stage.curves.keys() - {"step", "scores"}
            }
            for name, points in curves.items():
                for step, value in points:
                    self._write(result.key, f"stage{number}/{name}", int(step), value)
        for name, score in result.scores.items():
            if score is not None:
                self._write(result.key, f"final/{name}", 0, score)
        if result.key in self._writers:
            self._writers.pop(result.key)[0].close()
        self._listener.cell_finished(result)

    def _write(self, key: str, tag: str, step: int, value: float) -> None:
        if key not in self._writers:
            folder = self._folder / key
            with as_folder_error(folder):
                if folder.is_dir():
                    shutil.rmtree(folder)  # from an earlier run of the cell
                folder.mkdir(parents=True)
            self._writers[key] = self._make(str(folder)), set()
        writer, written = self._writers[key]
        if (tag, step) not in written:
            written.add((tag, step))
            writer.add_scalar(tag, value, step)
