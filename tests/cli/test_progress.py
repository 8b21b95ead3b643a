from __future__ import annotations

import io
from pathlib import Path

import pytest
from helpers.handmade import PlannedCell, failed, pair, reference, three
from rich.console import Console

from clbench.cli.console import duration
from clbench.cli.progress import Bars, Lines, outcome, share_done


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_share_of_a_cell() -> None:
    assert share_done(1, 2, 0, 10) == 0.0
    assert share_done(1, 2, 5, 10) == 0.25
    assert share_done(2, 2, 5, 10) == 0.75
    assert share_done(2, 2, 10, 10) == 1.0
    assert share_done(1, 1, 0, 0) == 1.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (89.4, "89 s"),
        (90.0, "2 min"),
        (600.0, "10 min"),
        (5400.0, "1 h 30 min"),
        (7500.0, "2 h 05 min"),
        (259200.0, "3.0 days"),
    ],
)
def test_durations_for_readers(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_log_has_a_line_for_each_cell_and_minute() -> None:
    clock, file = Clock(), io.StringIO()
    lines = Lines("quick", Path("results/quick"), Console(file=file, width=40), clock)
    lines.started(5, 4)
    lines.cell_started(PlannedCell())
    clock.now += 59
    lines.progress(PlannedCell(), 1, 2, 10, 40)
    clock.now += 2
    lines.progress(PlannedCell(), 1, 2, 20, 40)
    clock.now += 1
    lines.progress(PlannedCell(), 1, 2, 21, 40)
    clock.now += 58
    lines.cell_finished(pair())
    lines.cell_started(PlannedCell("sst2-mrpc--vanilla--seed1"))
    clock.now += 30
    lines.cell_finished(failed("vanilla", 1, "loss is nan at step 3 of task glue/mrpc"))
    # 120 s for the first, 150 s for two: 75 s a cell, two to come
    assert file.getvalue().splitlines() == [
        "quick: 5 cells, 1 already finished, 4 to run, results in results/quick",
        "[1/4] sst2-mrpc--vanilla--seed0: task 1 of 2, step 20 of 40",
        "[1/4] sst2-mrpc--vanilla--seed0: p_o 0.800  p_s 0.700  forgetting 0.100 "
        "(2 min; about 6 min left)",
        "[2/4] sst2-mrpc--vanilla--seed1: failed: loss is nan at step 3 of task glue/mrpc "
        "(30 s; about 2 min left)",
    ]


def test_bars_on_a_terminal_show_cell_step_and_time_left() -> None:
    clock, file = Clock(), io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None)
    bars = Bars("quick", Path("out"), console, clock)
    with bars.live:
        bars.started(2, 2)
        bars.cell_started(PlannedCell())
        clock.now += 10
        bars.progress(PlannedCell(), 1, 2, 20, 40)
        bars.live.refresh()
        # a quarter of the first of two cells took 10 s: 7 quarters are left
        assert "0/2 cells, 70 s left" in file.getvalue()
        assert "task 1 of 2, step 20 of 40" in file.getvalue()
        assert bars.bars.tasks[0].completed == pytest.approx(0.125)
        bars.cell_finished(pair())
        bars.live.refresh()
        assert bars.bars.tasks[0].completed == pytest.approx(0.5)
    assert "[1/2] sst2-mrpc--vanilla--seed0: p_o 0.800" in file.getvalue()


def test_the_table_on_a_terminal_grows_as_cells_finish() -> None:
    def text_of(bars: Bars) -> str:
        file = io.StringIO()
        Console(file=file, width=100).print(bars.view())
        return file.getvalue()

    console = Console(file=io.StringIO(), width=100, height=14, force_terminal=True)
    bars = Bars("quick", Path("out"), console, Clock())
    bars.started(9, 9)
    assert "p_o" not in text_of(bars)
    bars.cell_finished(pair("vanilla", 0))
    assert "0.800" in text_of(bars)
    assert "±" not in text_of(bars)
    bars.cell_finished(pair("vanilla", 1, R=[[0.9, 0.5], [0.6, 0.7]]))
    assert "0.700 ±0.141" in text_of(bars)
    # Of more scenarios than the window has lines for, those that changed last are shown.
    for name in ("second", "third", "fourth", "fifth"):
        other = pair("vanilla", 0).model_copy(update={"scenario": name, "key": name})
        bars.add_results([other])
    assert "fifth" in text_of(bars)
    assert "sst2-mrpc" not in text_of(bars)


def test_outcomes_of_references_and_sequences() -> None:
    assert outcome(reference(1, 0.75)) == "sst2-mrpc--reference1--seed0: score 0.750"
    assert outcome(three()).endswith(
        "p_s 0.700  BWT -0.100  average 0.750  over time 0.833  mean forg. 0.100"
    )
