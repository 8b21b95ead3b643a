"""Progress of a run: bars and a growing table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clbench.cli.console import duration, err
from clbench.cli.table import results_table
from clbench.evaluation.listener import Listener
from clbench.messages import count
from clbench.results.cell import CellResult
from clbench.results.scores import means, reference_score, score_rows, visible_scores

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.progress import TaskID
    from rich.table import Table

    from clbench.evaluation.run_state import RunState
    from clbench.suite.plan import Cell

HEARTBEAT = 60.0
"""Seconds between lines about a running cell in a plain log."""
OTHER_LINES = 6
"""Lines of the window that neither bars nor table take."""


@contextmanager
def progress_listener(state: RunState) -> Iterator[Listener]:
    """Give the listener that fits stderr."""
    console = err()
    suite, out = state.plan.suite.name, state.plan.out
    if not console.is_terminal or not state.pending:
        yield Lines(suite, out, console)
        return
    bars = Bars(suite, out, console)
    bars.add_results(state.present)
    with bars.live:
        yield bars


class Lines(Listener):
    """One line for each cell, and one a minute while a cell runs.

    `suite` and `out` are named in the first line.
    """

    def __init__(
        self, suite: str, out: Path, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.suite = suite
        self.out = out
        self.console = console
        self.clock = clock
        self.pending = 0
        self.done = 0
        self.cells_began: dict[str, float] = {}
        self.shares: dict[str, float] = {}
        self.began = self.last_line = clock()

    def started(self, total_cells: int, pending: int) -> None:
        """Print how many cells there are and how many to run."""
        self.pending = pending
        self.began = self.clock()
        cells = count(total_cells, "cell")
        if not pending:
            self.note(f"{self.suite}: {cells}, all finished before in {self.out}; nothing to run")
            return
        before = total_cells - pending
        cells += f", {before} finished before, {pending}" if before else ""
        self.note(f"{self.suite}: {cells} to run, results in {self.out}")

    def cell_started(self, cell: Cell) -> None:
        """Note the time."""
        self.last_line = self.cells_began[cell.key] = self.clock()

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Note how far the cell is, and print it once a minute."""
        self.cells_began.setdefault(cell.key, self.clock())
        self.shares[cell.key] = share_done(stage, stages, step, steps)
        if self.clock() - self.last_line >= HEARTBEAT:
            self.last_line = self.clock()
            self.heartbeat(cell, position(stage, stages, step, steps))

    def heartbeat(self, cell: Cell, where: str) -> None:
        """Print where a cell is, and which of how many cells run."""
        first, last = self.done + 1, self.done + len(self.cells_began)
        numbers = f"{first}" if first == last else f"{first}-{last}"
        self.note(f"[{numbers}/{self.pending}] {cell.key}: {where}")

    def cell_finished(self, result: CellResult) -> None:
        """Print the cell's scores, or why it failed."""
        self.done += 1
        self.shares.pop(result.key, None)
        now = self.clock()
        spent = duration(now - self.cells_began.pop(result.key, now))
        left = self.time_left()
        end = f"; about {duration(left)} left" if left else ""
        self.note(f"[{self.done}/{self.pending}] {outcome(result)} ({spent}{end})")

    def note(self, text: str) -> None:
        """Print one line, not folded: logs are searched by lines."""
        self.console.print(text, soft_wrap=True)

    @property
    def cells_done(self) -> float:
        """Finished cells, and the finished shares of running ones."""
        return self.done + sum(self.shares.values())

    def time_left(self) -> float | None:
        """Return the seconds left if cells keep their pace; None at the start and at the end."""
        if self.cells_done <= 0.0 or self.done >= self.pending:
            return None
        pace = (self.clock() - self.began) / self.cells_done
        return pace * max(self.pending - self.cells_done, 0.0)


class Bars(Lines):
    """A bar for all cells with the time left, one for each running cell, and a table above.

    The table has the scenarios whose cells finished last, as many as the window has lines for.
    Show it with ``with bars.live``.
    """

    def __init__(
        self, suite: str, out: Path, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Imported here, since a plain log and a finished run do without.
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(suite, out, console, clock)
        self.rows: dict[str, TaskID] = {}
        self.results: dict[str, dict[str, CellResult]] = {}
        self.table: Table | None = None
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self.live = Live(
            get_renderable=self.view, console=console, transient=True, refresh_per_second=10
        )
        self.all = self.bars.add_task(suite, total=1.0, note="")

    def view(self) -> Group:
        """Return the table above the bars."""
        from rich.console import Group

        return Group(self.bars) if self.table is None else Group(self.table, "", self.bars)

    def cell_started(self, cell: Cell) -> None:
        """Show the cell's bar, empty."""
        super().cell_started(cell)
        self.rows[cell.key] = self.bars.add_task(cell.key, total=1.0, note="preparing")
        self._update_all()

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Move the cell's bar and that of all."""
        super().progress(cell, stage, stages, step, steps)
        if cell.key in self.rows:
            note = position(stage, stages, step, steps)
            self.bars.update(self.rows[cell.key], completed=self.shares[cell.key], note=note)
        self._update_all()

    def heartbeat(self, cell: Cell, where: str) -> None:
        """Do nothing: the bar shows it."""

    def cell_finished(self, result: CellResult) -> None:
        """Print the cell's line above the bars, and add it to the table."""
        super().cell_finished(result)
        self.add_results([result])
        if result.key in self.rows:
            self.bars.remove_task(self.rows.pop(result.key))
        self._update_all()

    def add_results(self, results: Iterable[CellResult]) -> None:
        """Add finished cells to the table."""
        for result in results:
            cells = self.results.pop(result.scenario, {})
            self.results[result.scenario] = {**cells, result.key: result}
        room = self.console.height - len(self.rows) - 1 - OTHER_LINES
        fitting: list[CellResult] = []
        for cells in reversed(self.results.values()):
            room -= len({cell.baseline for cell in cells.values()}) + 1
            if room < 0:
                break
            fitting = [*cells.values(), *fitting]
        rows = means(score_rows(fitting))
        self.table = results_table(rows, self.console) if rows else None

    def _update_all(self) -> None:
        left = self.time_left()
        end = "" if left is None else f", {duration(left)} left"
        note = f"{self.done}/{self.pending} cells{end}"
        self.bars.update(self.all, completed=self.cells_done / max(self.pending, 1), note=note)


def share_done(stage: int, stages: int, step: int, steps: int) -> float:
    """Return the finished share of a cell; stages count alike, from 1."""
    within = min(step / steps, 1.0) if steps else 1.0
    return min(max(stage - 1 + within, 0.0) / max(stages, 1), 1.0)


def position(stage: int, stages: int, step: int, steps: int) -> str:
    """Return where a cell is, in words."""
    return f"task {stage} of {stages}, step {step} of {steps}"


def outcome(result: CellResult) -> str:
    """Return a finished cell in one line, with the scores that the table of results has."""
    if result.status == "failed":
        return f"{result.key}: failed: {result.reason}"
    if result.reference_of is not None:
        scores = {"score": reference_score(result)}
    else:
        (row,) = means(score_rows([result]))
        scores = {score.name: row[f"{score.name}_mean"] for score in visible_scores([row])}
    numbers = {name: value for name, value in scores.items() if value is not None}
    texts = [f"{name} {value:.3f}" for name, value in numbers.items() if not math.isnan(value)]
    return f"{result.key}: {'  '.join(texts)}"
