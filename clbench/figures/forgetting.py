"""How much is forgotten, when, and of which task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from clbench.figures import style
from clbench.results.statistics import FEWEST, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult

Series = tuple[list[float], list[float], list[float], list[float]]
"""Steps, means, minima and maxima over seeds."""


def forgetting(results: style.Results) -> Figure:
    """Draw what each method forgot of the first task, a panel a scenario.

    Forgetting is R[0, 0] − R[T−1, 0] in points of a hundred; positive is forgotten. Each seed is
    a small mark, the mean a large one; the line is the bootstrap 95 % interval of the mean where
    there are three seeds or more.

    Parameters
    ----------
    results
        A run or cells.

    Raises
    ------
    ValueError
        If no cell states what was forgotten.
    """
    cells = [c for c in style.good_cells(results) if c.scores.get("forgetting") is not None]
    if not cells:
        raise ValueError("no cell states what was forgotten")
    shown = style.looks(cells)
    groups = style.by_scenario(cells)
    most = max(len(methods) for methods in groups.values())
    figure, grid = style.panels(len(groups), width=3.8, height=0.6 + 0.27 * most)
    for axes, (scenario, methods) in zip(grid, groups.items(), strict=True):
        values = {
            name: [100 * float(cell.scores["forgetting"] or 0.0) for cell in some]
            for name, some in methods.items()
        }
        order = sorted(values, key=lambda name: -fmean(values[name]))
        for place, name in enumerate(order):
            _row(axes, place, values[name], shown[name])
        axes.axvline(0.0, lw=0.8, color=style.GREY, zorder=0)
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_xlabel("forgotten, points")
        axes.set_title(scenario, fontsize="medium")
        axes.locator_params(axis="x", nbins=style.TICKS)
        axes.grid(axis="x", lw=0.4, alpha=0.6)
    return style.captioned(
        figure,
        "Points (of 100) of the first task's score that were lost by the end; left of 0 it became "
        f"better. Small marks are seeds, large ones their mean, {style.seeds_in_words(cells)}; "
        f"lines are bootstrap 95 % intervals of the mean, from {FEWEST} seeds on.",
    )


def _row(axes: Axes, place: int, values: Sequence[float], look: style.Look) -> None:
    made = summarise(values)
    axes.plot(
        values,
        [place] * len(values),
        look.mark,
        ls="none",
        ms=3 * look.scale,
        color=look.color,
        alpha=0.5,
    )
    if not math.isnan(made.low):
        axes.plot([made.low, made.high], [place, place], "-", lw=1.6, color=look.color)
    axes.plot([made.mean], [place], look.mark, ms=7 * look.scale, color=look.color, mec="white")


def curves(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the forgetting curve: scores on the old and the new task over the last stage's steps.

    Parameters
    ----------
    results
        A run or cells.
    scenario
        Which; may be left out where there is only one.

    Raises
    ------
    ValueError
        If there is no such scenario, several to choose from, or no cell with curves.
    """
    cells, name = one_scenario(results, scenario)
    cells = [cell for cell in cells if _points(cell, cell.tasks[0])]
    if not cells:
        raise ValueError(f"no cell of {name} has curves: its suite has curve_points = 0")
    shown = style.looks(cells)
    methods = style.by_scenario(cells)[name]
    figure, grid = style.panels(2, width=4.2)
    first, last = cells[0].tasks[0], cells[0].tasks[-1]
    for axes, task, word in zip(grid, (first, last), ("old", "new"), strict=True):
        for method, some in methods.items():
            x, mean, low, high = over_seeds([_points(cell, task) for cell in some])
            look = shown[method]
            axes.plot(x, mean, look.mark, ls="-", lw=1.4, ms=4 * look.scale, color=look.color)
            if len(some) > 1:
                axes.fill_between(x, low, high, color=look.color, alpha=0.12, lw=0)
        axes.set_title(f"{word} task: {task}", fontsize="medium")
        axes.set_xlabel(f"step on {last}")
        axes.set_ylabel("score")
        axes.grid(axis="y", lw=0.4, alpha=0.6)
    style.legend(figure, shown)
    rows = cells[0].settings.get("protocol", {}).get("curve_rows", "some")
    return style.captioned(
        figure,
        f"{name}: scores on both tasks while the last one is learned, on at most {rows} rows "
        f"of each; mean and range over seeds, {style.seeds_in_words(cells)}.",
    )


def matrices(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the score matrix of each method as a heatmap, for a sequence of any length.

    Parameters
    ----------
    results
        A run or cells.
    scenario
        Which; may be left out where there is only one.

    Raises
    ------
    ValueError
        If there is no such scenario, or several to choose from.
    """
    cells, name = one_scenario(results, scenario)
    methods = style.by_scenario(cells)[name]
    size = len(cells[0].tasks)
    side = 1.3 + 0.55 * size
    figure, grid = style.panels(len(methods), width=side + 0.5, height=side)
    means = {
        method: np.mean([_matrix(cell) for cell in some], axis=0)
        for method, some in methods.items()
    }
    every = np.concatenate([matrix.ravel() for matrix in means.values()])
    low, high = float(np.nanmin(every)), float(np.nanmax(every))
    image = None
    for axes, (method, matrix) in zip(grid, means.items(), strict=True):
        image = axes.imshow(matrix, cmap="cividis", vmin=low, vmax=high)
        for (i, j), value in np.ndenumerate(matrix):
            if not np.isnan(value):
                bright = value > (low + high) / 2
                axes.text(
                    j, i, f"{value:.2f}", ha="center", va="center", fontsize="small",
                    color="black" if bright else "white",
                )  # fmt: skip
        axes.set_title(method, fontsize="medium")
        labels = [task.rpartition("/")[2] for task in cells[0].tasks]
        axes.set_xticks(range(size), labels, rotation=30, ha="right")
        axes.set_yticks(range(size), labels)
        axes.set_xlabel("scored on")
        axes.set_ylabel("after")
    assert image is not None
    figure.colorbar(image, ax=grid, shrink=0.8, label="score")
    return style.captioned(
        figure,
        f"{name}: R[i, j], the score on task j after training on task i; means over seeds, "
        f"{style.seeds_in_words(cells)}.",
    )


def one_scenario(results: style.Results, scenario: str | None) -> tuple[list[CellResult], str]:
    """The cells of one scenario, and its name.

    Raises
    ------
    ValueError
        If there is no such scenario, or several to choose from.
    """
    cells = style.good_cells(results)
    names = list(dict.fromkeys(cell.scenario for cell in cells))
    if scenario is None and len(names) > 1:
        raise ValueError(f"give one of the scenarios {', '.join(names)}")
    name = names[0] if scenario is None else scenario
    found = [cell for cell in cells if cell.scenario == name]
    if not found:
        raise ValueError(f"there is no scenario {name!r} among {', '.join(names)}")
    return found, name


def over_seeds(series: Sequence[Sequence[tuple[float, float]]]) -> Series:
    """Mean, minimum and maximum of several series at the steps that all of them have."""
    tables: list[Mapping[float, float]] = [dict(points) for points in series]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    rows = [[table[step] for table in tables] for step in shared]
    return (
        [float(step) for step in shared],
        [fmean(row) for row in rows],
        [min(row) for row in rows],
        [max(row) for row in rows],
    )


def _points(cell: CellResult, task: str) -> list[tuple[float, float]]:
    scores = cell.stages[-1].curves.get("scores", {})
    return [(float(step), float(score)) for step, score in scores.get(task, [])]


def _matrix(cell: CellResult) -> list[list[float]]:
    return [[math.nan if score is None else score for score in row] for row in cell.R]
