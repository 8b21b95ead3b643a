"""The state of a run, and those who follow its progress."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clbench.core.errors import RunFolderError, SettingsError, count
from clbench.core.files import as_folder_error, check_folder
from clbench.results.cell import CellResult
from clbench.results.reading import table_order
from clbench.results.resume import conflicts
from clbench.results.store import Store
from clbench.suite.plan import Cell, Plan, validate


@dataclass(frozen=True)
class RunState:
    """The cells of a run's folder, compared with a plan.

    Attributes
    ----------
    plan, replace
        The plan, and whether cells of other settings may be replaced.
    present
        Finished and failed cells in the folder, without those in `replaced`.
    replaced
        Keys of finished cells of other settings, which the run moves aside.
    pending
        The cells to run, in the plan's order; failed ones run again.
    notes
        A line for each file that is not a cell.
    files
        Modification time (ns) and size of each cell file, and of the archive, just before they
        were read.
    """

    plan: Plan
    replace: bool
    present: tuple[CellResult, ...]
    replaced: tuple[str, ...]
    pending: tuple[Cell, ...]
    notes: tuple[str, ...]
    files: dict[str, tuple[int, int]]

    def is_current(self) -> bool:
        """Whether the cell files are unchanged since they were read."""
        return self.files == Store(self.plan.out).stamps()

    def put_aside(self, store: Store) -> tuple[str, ...]:
        """Move broken and replaced files aside; return notes for the user. Needs the lock."""
        notes = self.notes
        if notes:
            pending = {cell.key for cell in self.pending}
            notes = tuple(store.read(set_aside=pending).broken_lines(pending))
        if self.replaced:
            cells = count(len(store.replace(self.plan.cells)), "cell")
            notes += (f"{cells} of other settings moved to cells/replaced/.",)
        return notes

    def with_new(self, results: Iterable[CellResult]) -> list[CellResult]:
        """Return all cells of the folder, `results` included, in the order of tables."""
        cells = {cell.key: cell for cell in (*self.present, *results)}
        scenarios = [scenario.name for scenario in self.plan.scenarios]
        methods = [baseline.name for baseline in self.plan.baselines]
        return sorted(cells.values(), key=table_order(scenarios, methods))

    def scores_are_current(self) -> bool:
        """Whether ``scores.csv`` is at least as new as every cell file."""
        path = Store(self.plan.out).scores_path
        newest = max((time for time, _ in self.files.values()), default=0)
        return path.exists() and path.stat().st_mtime_ns >= newest


def read_run_state(plan: Plan, *, replace: bool = False, can_replace: bool = True) -> RunState:
    """Return the state of a plan's folder; writes nothing.

    `can_replace` says whether the command has an option ``--replace``.

    Raises
    ------
    ClbenchError
        If the folder holds another suite's run, or cells of other settings without `replace`; for
        settings that are wrong, what is wrong with them.
    """
    store = Store(plan.out)
    store.check(plan.suite.name, plan.looks)
    files = store.stamps()
    folder = store.read()
    replaced = set(conflicts(plan.cells, folder.cells)) if replace else set()
    present = [cell for cell in folder.cells if cell.key not in replaced]
    try:
        finished = store.finished(plan.cells, results=present, can_replace=can_replace)
    except RunFolderError:
        validate(plan, plan.cells)  # settings that are wrong need no other folder
        raise
    return RunState(
        plan=plan,
        replace=replace,
        present=tuple(present),
        replaced=tuple(sorted(replaced)),
        pending=tuple(cell for cell in plan.cells if cell.key not in finished),
        notes=tuple(folder.broken_lines({cell.key for cell in plan.cells})),
        files=files,
    )


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
        """Called with a line for the user, while rows are prepared also from another thread."""


class TensorBoard(Listener):
    """Writes curves and scores to a folder, and passes all calls on to `listener`.

    Each cell is a TensorBoard run ``FOLDER/KEY`` with ``stage1/loss``, ``stage1/lr``,
    ``stage1/score of TASK`` and so on over the steps of a stage. When the cell finishes, the
    method's own curves and the final scores, such as ``final/p_o``, are added. If writing fails
    during the run, a note says so, and the run goes on without logs.

    Raises
    ------
    SettingsError
        If the package tensorboard is not installed.
    RunFolderError
        If the folder cannot be written.
    """

    def __init__(self, listener: Listener, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise SettingsError(
                "--tensorboard: the package tensorboard is not installed. Run "
                "pip install 'clbench[tensorboard]'."
            ) from error
        check_folder(folder)
        self._make = SummaryWriter
        self._listener = listener
        self._folder = folder
        self._writers: dict[str, tuple[Any, set[tuple[str, int]]]] = {}
        self._failed = False
        self.started = listener.started  # type: ignore[method-assign]
        self.cell_started = listener.cell_started  # type: ignore[method-assign]
        self.progress = listener.progress  # type: ignore[method-assign]
        self.note = listener.note  # type: ignore[method-assign]

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Write the point."""
        with self._until_it_fails(cell.key):
            for name, value in values.items():
                self._write(cell.key, f"stage{stage}/{name}", step, value)
            if cell.key in self._writers:
                self._writers[cell.key][0].flush()
        self._listener.point(cell, stage, step, values)

    def cell_finished(self, result: CellResult) -> None:
        """Write the points and curves that are not written yet, and the final scores."""
        with self._until_it_fails(result.key):
            self._write_result(result)
            if result.key in self._writers:
                self._writers.pop(result.key)[0].close()
        self._listener.cell_finished(result)

    @contextmanager
    def _until_it_fails(self, key: str) -> Iterator[None]:
        try:
            with as_folder_error(self._folder / key):
                yield
        except RunFolderError as error:
            self._failed = True
            self._writers.clear()
            self._listener.note(f"No more TensorBoard logs: {error}")

    def _write_result(self, result: CellResult) -> None:
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

    def _write(self, key: str, tag: str, step: int, value: float) -> None:
        if self._failed:
            return
        if key not in self._writers:
            folder = self._folder / key
            if folder.is_dir():
                shutil.rmtree(folder)  # from an earlier run of the cell
            folder.mkdir(parents=True)
            self._writers[key] = self._make(str(folder)), set()
        writer, written = self._writers[key]
        if (tag, step) not in written:
            written.add((tag, step))
            writer.add_scalar(tag, value, step)
