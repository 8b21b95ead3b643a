"""Curves of a run for TensorBoard, point by point as cells are trained."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clbench.errors import SettingsError
from clbench.evaluation.listener import Listener
from clbench.results.cell import CellResult
from clbench.results.output_folder import as_folder_error
from clbench.suite.plan import Cell

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Listener):
    """A listener that writes what it hears and passes it on.

    Each cell is a run of TensorBoard under ``FOLDER/KEY``, with ``stage1/loss``, ``stage1/lr``,
    ``stage1/score of TASK`` and so on over the steps of the stage, whatever curves the method
    recorded once the cell is finished, and its scores as ``final/p_o`` and so on.

    Parameters
    ----------
    listener
        Who else listens.
    folder
        For the logs.

    Raises
    ------
    SettingsError
        If the package tensorboard is not installed.
    """

    def __init__(self, listener: Listener, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as fault:
            raise SettingsError(
                "--tensorboard: the package tensorboard is not installed. "
                "pip install 'clbench[tensorboard]'"
            ) from fault
        self._make = SummaryWriter
        self._listener = listener
        self._folder = folder
        self._writers: dict[str, SummaryWriter] = {}
        self._written: dict[str, set[tuple[str, int]]] = {}

    def started(self, total_cells: int, pending: int) -> None:
        """Pass it on."""
        self._listener.started(total_cells, pending)

    def cell_started(self, cell: Cell) -> None:
        """Pass it on."""
        self._listener.cell_started(cell)

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Pass it on."""
        self._listener.progress(cell, stage, stages, step, steps)

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Write it."""
        for name, value in values.items():
            self._write(cell.key, f"stage{stage}/{name}", step, value)
        self._writer(cell.key).flush()
        self._listener.point(cell, stage, step, values)

    def cell_finished(self, result: CellResult) -> None:
        """Write what no point told, and the scores."""
        key = result.key
        for number, stage in enumerate(result.stages, 1):
            for name, points in _curves(stage.curves).items():
                for step, value in points:
                    self._write(key, f"stage{number}/{name}", int(step), value)
        for name, score in result.scores.items():
            if score is not None:
                self._write(key, f"final/{name}", 0, score)
        if key in self._writers:
            self._writers.pop(key).close()
            del self._written[key]
        self._listener.cell_finished(result)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._listener.note(text)

    def _write(self, key: str, tag: str, step: int, value: float) -> None:
        writer = self._writer(key)
        if (tag, step) not in self._written[key]:
            self._written[key].add((tag, step))
            writer.add_scalar(tag, value, step)

    def _writer(self, key: str) -> SummaryWriter:
        if key not in self._writers:
            place = self._folder / key
            with as_folder_error(place):
                if place.is_dir():
                    shutil.rmtree(place)  # of a cell that was cut off, or run again
                place.mkdir(parents=True)
            self._writers[key] = self._make(str(place))
            self._written[key] = set()
        return self._writers[key]


Points = list[tuple[float, float]]


def _curves(curves: Mapping[str, object]) -> dict[str, Points]:
    """The curves of a stage by the names that points have."""
    found: dict[str, Points] = {}
    steps = curves.get("step")
    for name, values in curves.items():
        if name == "scores" and isinstance(values, dict):
            found |= {f"score of {task}": points for task, points in values.items()}
        elif name in ("loss", "lr") and isinstance(values, list) and isinstance(steps, list):
            found[name] = list(zip(steps, values, strict=True))
        elif name != "step" and isinstance(values, list):
            found[name] = values
    return found
