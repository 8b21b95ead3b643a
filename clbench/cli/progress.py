"""Progress of a run: bars with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clbench.cli.console import duration, err, plural
from clbench.results.cell import CellResult, summarizer
from clbench.results.scores import reference_score
from clbench.results.store import Store

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from clbench.cli.live import LiveTable
    from clbench.evaluation.listener import Listener
    from clbench.suite.plan import Cell

HEARTBEAT = 60.0
"""Seconds after which a plain log hears of a cell that is still running."""


@contextmanager
def listener(suite: str, out: Path) -> Iterator[Listener]:
    """The listener that fits stderr."""
    console = err()
    if not console.is_terminal:
        yield Lines(suite, out, console)
        return
    from rich.progress import BarColumn, TextColumn

    from clbench.cli.live import LiveTable

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with LiveTable(*columns, console=console, transient=True) as progress:
        yield Bars(suite, out, console, progress)


@dataclass
class Running:
    """A running cell: when it began, and which share of it is done."""

    began: float
    part: float = 0.0


class Lines:
    """One line a cell, and one a minute while a cell is running.

    Parameters
    ----------
    suite, out
        Named in the first line.
    console
        Where lines go.
    clock
        Seconds that only go forward.
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
        self.running: dict[str, Running] = {}
        self.began = self.spoke = clock()

    def started(self, total_cells: int, pending: int) -> None:
        """Say how many cells there are and how many are left."""
        self.pending = pending
        self.began = self.clock()
        cells = plural(total_cells, "cell")
        if pending == total_cells:
            self.say(f"{self.suite}: {cells} to run, results in {self.out}")
        elif pending:
            self.say(
                f"{self.suite}: {cells}, {total_cells - pending} finished before, "
                f"{pending} to run, results in {self.out}"
            )
        else:
            self.say(f"{self.suite}: {cells}, all finished before in {self.out}; nothing to run")

    def cell_started(self, cell: Cell) -> None:
        """Remember when."""
        now = self.clock()
        self.running[cell.key] = Running(now)
        self.spoke = now

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Take note of how far the cell is; speak once a minute."""
        self._note_part(cell, fraction(stage, stages, step, steps))
        if self.clock() - self.spoke >= HEARTBEAT:
            self.spoke = self.clock()
            self.say(f"{self.count()} {cell.key}: {position(stage, stages, step, steps)}")

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Of no interest here."""

    def cell_finished(self, result: CellResult) -> None:
        """Say the cell's scores, or why it failed."""
        self.done += 1
        now = self.clock()
        took = duration(now - self.running.pop(result.key, Running(now)).began)
        left = self.time_left()
        end = f"; about {duration(left)} left" if left and self.done < self.pending else ""
        self.say(f"[{self.done}/{self.pending}] {outcome(result)} ({took}{end})")

    def note(self, text: str) -> None:
        """Pass it on."""
        self.say(text)

    def say(self, text: str) -> None:
        """Print one line, not folded: a log is searched by lines."""
        self.console.print(text, soft_wrap=True)

    def count(self) -> str:
        """Which of how many cells is running."""
        first, last = self.done + 1, self.done + max(len(self.running), 1)
        return f"[{first if first == last else f'{first}-{last}'}/{self.pending}]"

    @property
    def part(self) -> float:
        """Cells' worth of what is running and not finished."""
        return sum(running.part for running in self.running.values())

    def _note_part(self, cell: Cell, part: float) -> None:
        self.running.setdefault(cell.key, Running(self.clock())).part = part

    def time_left(self) -> float | None:
        """Seconds, taking the cells to come for as long as those done; None at the start."""
        done = self.done + self.part
        if done <= 0.0:
            return None
        return (self.clock() - self.began) / done * max(self.pending - done, 0.0)


class Bars(Lines):
    """A bar for all cells with the time left, one for each that runs, and a table of results."""

    def __init__(
        self,
        suite: str,
        out: Path,
        console: Console,
        progress: LiveTable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(suite, out, console, clock)
        self.bars = progress
        self.all = progress.add_task(suite, total=1.0, note="")
        self.rows: dict[str, TaskID] = {}

    def started(self, total_cells: int, pending: int) -> None:
        """Show what was finished before."""
        super().started(total_cells, pending)
        if pending < total_cells:
            self.bars.add_results(Store(self.out).read(each=summarizer()).cells)

    def cell_started(self, cell: Cell) -> None:
        """Show the cell's bar, empty."""
        super().cell_started(cell)
        self.rows[cell.key] = self.bars.add_task(cell.key, total=1.0, note="preparing")
        self._overall()

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Move the cell's bar and that of all."""
        part = fraction(stage, stages, step, steps)
        self._note_part(cell, part)
        if cell.key in self.rows:
            note = position(stage, stages, step, steps)
            self.bars.update(self.rows[cell.key], completed=part, note=note)
        self._overall()

    def cell_finished(self, result: CellResult) -> None:
        """Print the cell's line above the bars, and take it into the table."""
        super().cell_finished(result)
        self.bars.add_results([result])
        if result.key in self.rows:
            self.bars.remove_task(self.rows.pop(result.key))
        self._overall()

    def _overall(self) -> None:
        left = self.time_left()
        note = f"{self.done}/{self.pending} cells"
        if left is not None and self.done < self.pending:
            note += f", {duration(left)} left"
        done = (self.done + self.part) / max(self.pending, 1)
        self.bars.update(self.all, completed=done, note=note)


def fraction(stage: int, stages: int, step: int, steps: int) -> float:
    """Share of a cell that is done; stages count alike, from 1."""
    within = min(step / steps, 1.0) if steps else 1.0
    return min(max(stage - 1 + within, 0.0) / max(stages, 1), 1.0)


def position(stage: int, stages: int, step: int, steps: int) -> str:
    """Where a cell is, for a reader."""
    return f"task {stage} of {stages}, step {step} of {steps}"


def outcome(result: CellResult) -> str:
    """A finished cell in one line."""
    if result.status == "failed":
        return f"{result.key}: failed: {result.reason}"
    if result.reference_of is not None:
        scores = {"score": reference_score(result)}
    else:
        names = ["p_o", "p_s", "forgetting"]
        if len(result.tasks) > 2:
            names += ["average", "bwt"]
        scores = {name: result.scores.get(name) for name in names}
    shown = [f"{name} {value:.3f}" for name, value in scores.items() if value is not None]
    return f"{result.key}: {'  '.join(shown)}"
