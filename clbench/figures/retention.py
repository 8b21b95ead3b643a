"""What is left of each task of a sequence while the later ones are learned."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from clbench.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult

FEWEST_TASKS = 3
"""Fewest columns of R to draw; with two, all numbers are in the other figures."""
COLUMNS = 4
"""Most panels in a row."""


@style.in_report("retention", order=38, per="scenario")
def retention(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the average over the tasks so far, and the score on each task, stage by stage."""
    from matplotlib.ticker import MaxNLocator

    cells, name = style.one_scenario(results, scenario)
    tasks = cells[0].tasks
    if len(tasks) < FEWEST_TASKS:
        raise ValueError(f"{name} has {len(tasks)} tasks; retention needs {FEWEST_TASKS} or more")
    looks, labels = style.looks(cells), style.short_labels(tasks)
    panels = min(COLUMNS, len(tasks))
    # The last task is scored once only.
    figure, grid = style.panels(len(tasks), width=10.2 / panels, height=2.3, columns=panels)
    for axes, column in zip(grid, [None, *range(len(tasks) - 1)], strict=True):
        for method, some in style.by_scenario(cells)[name].items():
            style.draw_over_seeds(axes, [_points(cell, column) for cell in some], looks[method])
        title = "average so far" if column is None else labels[tasks[column]]
        axes.set_title(title, fontsize="medium", fontweight="bold" if column is None else None)
        axes.set_xlim(0.8, len(tasks) + 0.2)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("tasks learned")
        axes.set_ylabel("score")
        axes.grid(axis="y", lw=0.4, alpha=0.6)
    style.legend(figure, looks)
    return style.captioned(
        figure,
        f"{name}: average score over the tasks learned so far, and the score on each task but the "
        "last from the stage that trains it on, R[j, j] to R[n, j]; mean and range over seeds, "
        f"{style.count_seeds(cells)}.",
    )


def _points(cell: CellResult, column: int | None) -> style.Points:
    """Return the stage, from 1, and the score in a column of R; None averages those so far."""
    points: style.Points = []
    for stage, row in enumerate(cell.R):
        scores = row[: stage + 1] if column is None else row[column : column + 1]
        if (column is None or stage >= column) and None not in scores:
            points.append((stage + 1, fmean(score for score in scores if score is not None)))
    return points
