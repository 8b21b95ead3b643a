"""Progress of a run: bars and a growing table on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from clbench.cli.console import duration, err, results_table
from clbench.core.errors import count, printable
from clbench.results.cell import CellResult
from clbench.results.score_tables import means, reference_score, score_rows, visible_scores
from clbench.runner.run_state import Listener, RunState
from clbench.suite.plan import Cell

HEARTBEAT = 60.0
"""Seconds between lines about a running cell in a plain log."""
TABLE_SHARE = 0.05
"""Largest share of the time to spend on the table, which takes longer the more cells it has."""
OTHER_LINES = 6
"""Lines of the window that stay free of bars and table."""


@contextmanager
def progress_listener(state: RunState) -> Iterator[Listener]:
    """Yield a listener that prints to stderr: bars on a terminal, else lines."""
    console = err()
    suite, out = printable(state.plan.suite.name), state.plan.out
    if not console.is_terminal or not state.pending:
        yield Lines(suite, out, console)
        return
    bars = Bars(suite, out, console, reference=state.plan.question.reference)
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
        self.finished_cells = 0
        self.cell_starts: dict[str, float] = {}
        self.shares: dict[str, float] = {}
        self.start = self.last_line = clock()

    def started(self, total_cells: int, pending: int) -> None:
        """Print how many cells there are and how many to run."""
        self.pending = pending
        self.start = self.clock()
        cells = count(total_cells, "cell")
        if not pending:
            self.note(f"{self.suite}: {cells}, all already finished in {self.out}; nothing to run")
            return
        finished = total_cells - pending
        cells += f", {finished} already finished, {pending}" if finished else ""
        self.note(f"{self.suite}: {cells} to run, results in {self.out}")

    def cell_started(self, cell: Cell) -> None:
        """Record the start of the cell."""
        self.last_line = self.cell_starts[cell.key] = self.clock()

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Record the progress of the cell, and print it once a minute."""
        self.cell_starts.setdefault(cell.key, self.clock())
        self.shares[cell.key] = share_done(stage, stages, step, steps)
        if self.clock() - self.last_line >= HEARTBEAT:
            self.last_line = self.clock()
            self.heartbeat(cell, position(stage, stages, step, steps))

    def heartbeat(self, cell: Cell, where: str) -> None:
        """Print the numbers of the running cells, and the position of one of them."""
        first, last = self.finished_cells + 1, self.finished_cells + len(self.cell_starts)
        numbers = f"{first}" if first == last else f"{first}-{last}"
        self.note(f"[{numbers}/{self.pending}] {cell.key}: {where}")

    def cell_finished(self, result: CellResult) -> None:
        """Print the cell's scores, or why it failed."""
        self.shares.pop(result.key, None)
        now = self.clock()
        self.item_finished(outcome(result), now - self.cell_starts.pop(result.key, now))

    def item_finished(self, result: str, seconds: float) -> None:
        """Print the result of a cell or trial, the time it took and the time left."""
        self.finished_cells += 1
        times = duration(seconds)
        if remaining := self.time_left():
            times += f"; about {duration(remaining)} left"
        self.note(f"[{self.finished_cells}/{self.pending}] {result} ({times})")

    def note(self, text: str) -> None:
        """Print one unwrapped line, so that logs can be searched line by line."""
        self.console.print(text, soft_wrap=True)

    @property
    def total_progress(self) -> float:
        """Number of finished cells plus the finished shares of running ones."""
        return self.finished_cells + sum(self.shares.values())

    def time_left(self) -> float | None:
        """Return the seconds left at the current pace; None at the start and at the end."""
        if self.total_progress <= 0.0 or self.finished_cells >= self.pending:
            return None
        pace = (self.clock() - self.start) / self.total_progress
        return pace * max(self.pending - self.total_progress, 0.0)


class Bars(Lines):
    """A bar for the run with the time left, one for each running cell, and a table above.

    The table has the scenarios whose cells finished last, as many as fit into the window; scores
    that need a reference method take `reference`. Display all of it inside ``with bars.live``.
    """

    def __init__(
        self,
        suite: str,
        out: Path,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        reference: str = "vanilla",
    ) -> None:
        super().__init__(suite, out, console, clock)
        self.reference = reference
        self.cell_bars: dict[str, TaskID] = {}
        self.results: dict[str, dict[str, CellResult]] = {}
        self.table: Table | None = None
        self.next_table = 0.0
        self.is_current = True
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self.live = Live(
            get_renderable=self.view, console=console, transient=True, refresh_per_second=10
        )
        self.run_bar = self.bars.add_task(suite, total=1.0, note="")

    def view(self) -> Group:
        """Return the table above the bars; called by the thread that refreshes the window."""
        start = self.clock()
        if not self.is_current and start >= self.next_table:
            self.is_current = True
            rows = means(score_rows(self._visible(), self.reference))
            self.table = results_table(rows, self.console) if rows else None
            self.next_table = self.clock() + (self.clock() - start) / TABLE_SHARE
        return Group(self.bars) if self.table is None else Group(self.table, "", self.bars)

    def cell_started(self, cell: Cell) -> None:
        """Add an empty bar for the cell."""
        super().cell_started(cell)
        self.cell_bars[cell.key] = self.bars.add_task(cell.key, total=1.0, note="preparing")
        self._update_run_bar()

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Advance the bars of the cell and the run."""
        super().progress(cell, stage, stages, step, steps)
        if (bar := self.cell_bars.get(cell.key)) is not None:
            note = position(stage, stages, step, steps)
            self.bars.update(bar, completed=self.shares[cell.key], note=note)
        self._update_run_bar()

    def heartbeat(self, cell: Cell, where: str) -> None:
        """Do nothing: the bar shows the position."""

    def cell_finished(self, result: CellResult) -> None:
        """Print the cell's line above the bars, and add it to the table."""
        super().cell_finished(result)
        self.add_results([result])
        if result.key in self.cell_bars:
            self.bars.remove_task(self.cell_bars.pop(result.key))
        self._update_run_bar()

    def add_results(self, results: Iterable[CellResult]) -> None:
        """Add finished cells to the table."""
        for result in results:
            cells = self.results.pop(result.scenario, {})
            cells[result.key] = result
            self.results[result.scenario] = cells
        self.is_current = False

    def _visible(self) -> list[CellResult]:
        """Return the cells of the scenarios that fit into the window."""
        room = self.console.height - len(self.cell_bars) - 1 - OTHER_LINES
        visible: list[list[CellResult]] = []
        for by_key in reversed(list(self.results.values())):
            cells = list(by_key.values())
            room -= len({cell.baseline for cell in cells}) + 1
            if room < 0:
                break
            visible.insert(0, cells)
        return [cell for cells in visible for cell in cells]

    def _update_run_bar(self) -> None:
        note = f"{self.finished_cells}/{self.pending} cells"
        if (remaining := self.time_left()) is not None:
            note += f", {duration(remaining)} left"
        share = self.total_progress / max(self.pending, 1)
        self.bars.update(self.run_bar, completed=share, note=note)


def share_done(stage: int, stages: int, step: int, steps: int) -> float:
    """Return the finished share of a cell; all stages have equal weight and count from 1."""
    within = min(step / steps, 1.0) if steps else 1.0
    return min(max(stage - 1 + within, 0.0) / max(stages, 1), 1.0)


def position(stage: int, stages: int, step: int, steps: int) -> str:
    """Return the task and step that a cell has reached, in words."""
    return f"task {stage} of {stages}, step {step} of {steps}"


def outcome(result: CellResult) -> str:
    """Return a line with the scores of a cell, without shares, which are noisy, or its failure."""
    if result.status == "failed":
        return f"{result.key}: failed: {result.reason}"
    if result.reference_of is not None:
        scores = {"score": reference_score(result)}
    else:
        (row,) = means(score_rows([result]))
        visible = [score for score in visible_scores([row]) if not score.ratio]
        scores = {score.label: row[f"{score.name}_mean"] for score in visible}
    numbers = {name: value for name, value in scores.items() if value is not None}
    texts = [
        f"{name} {round(value, 3) + 0.0:.3f}"  # adding 0 turns -0.000 into 0.000
        for name, value in numbers.items()
        if not math.isnan(value)
    ]
    return f"{result.key}: {'  '.join(texts)}"
