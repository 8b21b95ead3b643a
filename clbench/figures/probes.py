"""What the heads score, and what linear probes still read from the features."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from clbench.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult


@style.in_report("heads and features", order=39, per="scenario")
def probes(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the average over the tasks so far of the heads, and of linear probes of the features.

    Raises a ValueError without cells that have probes.
    """
    from matplotlib.ticker import MaxNLocator

    cells, name = style.one_scenario(results, scenario)
    cells = [cell for cell in cells if cell.probes]
    if not cells:
        raise ValueError(f"{name} has no probes; set probe_rows in the suite's [protocol]")
    looks = style.looks(cells)
    figure, grid = style.panels(2, width=4.2, height=2.8, columns=2)
    for axes, matrix in zip(grid, ("R", "probes"), strict=True):
        for method, some in style.by_scenario(cells)[name].items():
            style.draw_over_seeds(axes, [_points(cell, matrix) for cell in some], looks[method])
        axes.set_title("heads" if matrix == "R" else "linear probes", fontsize="medium")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("tasks learned")
        axes.set_ylabel("average so far")
        axes.grid(axis="y", lw=0.4, alpha=0.6)
    limits = [axes.get_ylim() for axes in grid]
    for axes in grid:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    style.legend(figure, looks)
    return style.captioned(
        figure,
        f"{name}: average score over the tasks learned so far, of the model's heads (left) and of "
        "linear probes of its features (right). Where the heads fall and the probes do not, the "
        f"features have kept the tasks. Mean and range over seeds, {style.count_seeds(cells)}.",
    )


def _points(cell: CellResult, matrix: str) -> style.Points:
    """Return each stage, from 1, and the mean score over the tasks so far that have a probe."""
    shift = len(cell.probes) - len(cell.R)
    points: style.Points = []
    for stage, row in enumerate(cell.R):
        probed = cell.probes[stage + shift]
        known = [j for j in range(stage + 1) if probed[j] is not None and row[j] is not None]
        scores = row if matrix == "R" else probed
        if known:
            points.append((stage + 1, fmean(scores[j] or 0.0 for j in known)))
    return points
