"""Figures of what happens step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.handmade import pair, stage

from clbench import figures
from clbench.results.cell import CellResult


def cell(curves: dict[str, Any], seed: int = 0, **changes: Any) -> CellResult:
    """Return a cell whose last stage has these curves of scores."""
    tasks = changes.setdefault("tasks", [*curves])
    last = stage(tasks[-1], curves={"scores": curves})
    return pair(seed=seed, stages=[*map(stage, tasks[:-1]), last], **changes)


def test_a_task_that_comes_twice_has_its_own_curve_each_time() -> None:
    curves = {"a": [[0, 0.9], [4, 0.8]], "b": [[0, 0.8], [4, 0.8]], "a (2)": [[0, 0.1], [4, 0.5]]}
    matrix = [[0.9, None, None], [0.9, 0.8, None], [0.8, 0.8, 0.5]]
    changes = {"tasks": ["a", "b", "a"], "R": matrix, "scores": {"p_s": 0.5}}
    old, new = figures.curves([cell(curves, **changes)]).axes
    assert list(old.get_lines()[0].get_ydata()) == [0.9, 0.8]
    assert list(new.get_lines()[0].get_ydata()) == [0.1, 0.5]


def test_curves_end_with_the_scores_after_consolidation() -> None:
    curves = {"a": [[0, 0.9], [4, 0.6]], "b": [[0, 0.5], [4, 0.8]]}
    matrices = [[[0.9, None], [0.7, 0.75]], [[0.9, None], [0.8, 0.7]]]
    cells = [
        cell(curves, seed, R=matrix, baseline="wise-ft") for seed, matrix in enumerate(matrices)
    ]
    figure = figures.curves(cells)
    for axes, ends, score in zip(figure.axes, (0.6, 0.8), (0.75, 0.725), strict=True):
        curve, end = axes.get_lines()
        assert curve.get_ydata()[-1] == ends
        assert end.get_xdata()[0] > 4
        assert end.get_ydata() == pytest.approx([score])
    assert "Open marks: means of the final scores, on all rows, after" in figure.get_label()


@pytest.mark.parametrize("grid", [[0, 19, 38, 57], [0, 57]], ids=["as many", "fewer"])
def test_curves_of_seeds_with_stages_of_other_lengths_end_together(grid: list[int]) -> None:
    """By hand: the ends are 60 and 57, their mean 58.5; .9 and .6 fall to .3 and 0."""
    first = [[step, 0.9 - 0.01 * step] for step in (0, 20, 40, 60)]
    second = [[step, 0.6 - 0.6 * step / 57] for step in grid]
    cells = [cell({"a": first, "b": first}), cell({"a": second, "b": second}, seed=1)]
    figure = figures.curves(cells)
    for axes in figure.axes:
        line, _ = axes.get_lines()
        assert line.get_xydata() == pytest.approx(
            np.array([(0, 0.75), (19.5, 0.55), (39, 0.35), (58.5, 0.15)])
        )
        (band,) = axes.collections
        assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(0.0)
    assert "differ in length, at equal shares of them" in figure.get_label()


def test_curves_begin_where_those_of_all_seeds_do() -> None:
    """A stage too short for points has one at its end."""
    long, short = [[0, 0.2], [30, 0.5], [60, 0.8]], [[57, 0.6]]
    cells = [cell({"a": long, "b": long}), cell({"a": short, "b": short}, seed=1)]
    for axes in figures.curves(cells).axes:
        assert axes.get_lines()[0].get_xydata() == pytest.approx(np.array([(58.5, 0.7)]))
