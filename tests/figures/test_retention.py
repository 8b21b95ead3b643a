"""Figures of sequences of three tasks and more."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.handmade import pair

from clbench import figures
from clbench.results.cell import CellResult

TASKS = ["a", "b", "c"]


def sequence(method: str, seed: int, first: float) -> CellResult:
    """Return a cell whose score on task 0 is `first` after the last of three stages."""
    matrix: list[list[float | None]] = [[0.9, None, None], [0.7, 0.8, None], [first, 0.6, 1.0]]
    average = (first + 0.6 + 1.0) / 3
    return pair(method, seed, matrix, tasks=TASKS, scores={"average": average})


CELLS = [sequence(m, s, 0.5 + 0.2 * s) for m in ("vanilla", "ewc") for s in (0, 1)]


def lines(axes: Any) -> list[list[tuple[float, float]]]:
    """Return the points of each line, rounded."""
    return [[(x, round(y, 9)) for x, y in line.get_xydata()] for line in axes.get_lines()]


def test_the_average_and_each_task_but_the_last_have_a_panel() -> None:
    figure = figures.retention(CELLS)
    average, first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["average so far", "a", "b"]
    # By hand: .9; (.7 + .8) / 2; ((.5 + .6 + 1) / 3 + (.7 + .6 + 1) / 3) / 2.
    assert lines(average) == [[(1, 0.9), (2, 0.75), (3, round(4.4 / 6, 9))]] * 2
    assert lines(first) == [[(1, 0.9), (2, 0.7), (3, 0.6)]] * 2
    assert lines(second) == [[(2, 0.8), (3, 0.6)]] * 2
    assert "n = 2 seeds" in figure.get_label()


def test_two_tasks_have_no_retention() -> None:
    with pytest.raises(ValueError, match="sst2-mrpc has 2 tasks; retention needs 3"):
        figures.retention([pair("vanilla", 0)])


def test_costs_of_sequences_are_drawn_against_the_average() -> None:
    figure = figures.costs(CELLS)
    times = figure.axes[0]
    assert times.get_ylabel() == "average × 100"
    heights = {round(y, 6) for line in times.get_lines() for y in line.get_ydata()}
    assert heights == {round(100 * 4.4 / 6, 6)}
    assert "average score at the end (× 100) against seconds" in figure.get_label()


def test_matrices_frame_the_diagonal() -> None:
    corners = [patch.get_xy() for patch in figures.matrices(CELLS).axes[0].patches]
    assert corners == [(i - 0.46, i - 0.46) for i in range(3)]


def test_heads_are_drawn_beside_probes() -> None:
    probes = [[0.5, 0.5, None], [0.9, 0.5, None], [0.8, 0.9, None], [0.7, 0.8, None]]
    cell = CELLS[0].model_copy(update={"probes": probes})
    figure = figures.probes([cell])
    heads, features = figure.axes
    assert lines(heads) == [[(1, 0.9), (2, 0.75), (3, 0.55)]]  # the last task has no probe
    assert lines(features) == [[(1, 0.9), (2, 0.85), (3, 0.75)]]
    assert heads.get_ylim() == features.get_ylim()
    assert "over the tasks learned so far that have a probe" in figure.get_label()
    with pytest.raises(ValueError, match="sst2-mrpc has no probes; set probe_rows"):
        figures.probes(CELLS)
