"""Figures of what happens step by step."""

from __future__ import annotations

from typing import Any

from helpers.handmade import pair, stage

from clbench import figures
from clbench.results.cell import CellResult


def cell(curves: dict[str, Any], seed: int = 0, steps: int = 4, **changes: Any) -> CellResult:
    """Return a cell whose last stage has these curves of scores."""
    tasks = changes.setdefault("tasks", [*curves])
    last = stage(tasks[-1], steps=steps, curves={"scores": curves})
    return pair(seed=seed, stages=[*map(stage, tasks[:-1]), last], **changes)


def test_a_task_that_comes_twice_has_its_own_curve_each_time() -> None:
    curves = {"a": [[0, 0.9], [4, 0.8]], "b": [[0, 0.8], [4, 0.8]], "a (2)": [[0, 0.1], [4, 0.5]]}
    matrix = [[0.9, None, None], [0.9, 0.8, None], [0.8, 0.8, 0.5]]
    changes = {"tasks": ["a", "b", "a"], "R": matrix, "scores": {"p_s": 0.5}}
    old, new = figures.curves([cell(curves, **changes)]).axes
    assert list(old.get_lines()[0].get_ydata()) == [0.9, 0.8]
    assert list(new.get_lines()[0].get_ydata()) == [0.1, 0.5]
