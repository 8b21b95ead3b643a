"""How much is forgotten, and of which task."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from clbench.core.errors import join_names
from clbench.figures import style
from clbench.results.scores import SCORE
from clbench.results.statistics import summarise
from clbench.suite.question import FEWEST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult


LABEL = f"{SCORE['forgetting'].label} × 100"


def score_of(cell: CellResult) -> str:
    """Return the score that says what a cell forgot: of pairs that of the first task."""
    return "mean_forgetting" if len(cell.tasks) > 2 else "forgetting"


def with_forgetting(cells: list[CellResult]) -> tuple[list[CellResult], list[float]]:
    """Return the cells that have this score, and 100 × the score; ValueError if none has."""
    pairs = [(c, 100 * lost) for c in cells if (lost := c.scores.get(score_of(c))) is not None]
    if not pairs:
        names = join_names(dict.fromkeys(cell.scenario for cell in cells))
        raise ValueError(f"no cell of {names} has a score for forgetting")
    return [cell for cell, _ in pairs], [lost for _, lost in pairs]


@style.in_report("Forgetting", order=20)
def forgetting(results: style.Results) -> Figure:
    """Draw the forgetting of each method, a panel for each scenario.

    Of pairs it is that of the first task, of longer sequences the mean over the earlier tasks.

    Small marks are seeds, large ones means; lines are 95 % t intervals of the mean, drawn
    from three seeds on.
    """
    cells, _ = with_forgetting(style.good_cells(results))
    looks = style.looks(cells)
    groups = style.by_scenario(cells)
    most = max(len(methods) for methods in groups.values())
    labels = style.short_labels([*groups, *looks])
    width = max(3.8, 2.6 + 0.065 * max(len(labels[name]) for name in looks))
    figure, grid = style.panels(len(groups), width=width, height=0.6 + 0.27 * most)
    for axes, (scenario, methods) in zip(grid, groups.items(), strict=True):
        values = {name: with_forgetting(some)[1] for name, some in methods.items()}
        order = sorted(values, key=lambda name: -fmean(values[name]))
        for row, name in enumerate(order):
            color, mark, scale, _ = looks[name]
            summary = summarise(values[name])
            rows = [row] * len(values[name])
            axes.plot(values[name], rows, mark, ms=3 * scale, color=color, alpha=0.5)
            if not math.isnan(summary.low):
                axes.plot([summary.low, summary.high], [row, row], "-", lw=1.6, color=color)
            axes.plot([summary.mean], [row], mark, ms=7 * scale, color=color, mec="white")
        axes.axvline(0.0, lw=0.8, color=style.GREY, zorder=0)
        axes.set_yticks(range(len(order)), [labels[name] for name in order])
        axes.set_ylim(-0.6, len(order) - 0.4)
        name = score_of(next(iter(methods.values()))[0])
        axes.set_xlabel(f"{SCORE[name].label} × 100")
        axes.set_title(labels[scenario], fontsize="medium")
        axes.locator_params(axis="x", nbins=style.TICKS)
        axes.grid(axis="x", lw=0.4, alpha=0.6)
    return style.captioned(
        figure,
        "Forgetting: the score lost by the end on the first of two tasks, or the mean drop of the "
        "earlier tasks of a longer sequence from their best score, × 100; negative if it rose. "
        f"Small marks are seeds, large marks their means, {style.count_seeds(cells)}; "
        f"lines are 95 % t intervals of the mean, drawn from {FEWEST} seeds on.",
    )


@style.in_report("score matrices", order=60, per="scenario")
def matrices(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the mean score matrix of each method as a heatmap."""
    from matplotlib.patches import Rectangle

    cells, name = style.one_scenario(results, scenario)
    means = {
        method: np.mean([np.array(cell.R, dtype=float) for cell in some], axis=0)
        for method, some in style.by_scenario(cells)[name].items()
    }
    size = len(cells[0].tasks)
    tasks = style.short_labels(cells[0].tasks)
    labels = [tasks[task].replace("$", r"\$") for task in cells[0].tasks]
    titles = style.short_labels(means)
    longest = 0.06 * max(map(len, labels))  # inches
    side = 1.0 + 0.55 * size + longest
    figure, grid = style.panels(len(means), width=side + 0.5, height=side - 0.4 * longest)
    low, high = np.nanmin(list(means.values())), np.nanmax(list(means.values()))
    if high - low < style.NARROWEST:
        low, high = low - 0.05, high + 0.05
    for axes, (method, matrix) in zip(grid, means.items(), strict=True):
        image = axes.imshow(matrix, cmap="cividis", vmin=low, vmax=high)
        for (i, j), value in np.ndenumerate(matrix):
            if not np.isnan(value):
                color = "black" if value > (low + high) / 2 else "white"
                axes.text(
                    j, i, f"{value:.2f}", ha="center", va="center", fontsize="small", color=color
                )
        for i in range(size):
            corner = (i - 0.46, i - 0.46)
            axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, lw=1.4, ec=style.BLACK))
        axes.set_title(titles[method], fontsize="medium")
        axes.set_xticks(range(size), labels, rotation=30, ha="right")
        axes.set_yticks(range(size), labels)
        axes.set_xlabel("scored on")
        axes.set_ylabel("after training on")
    figure.colorbar(image, ax=grid, shrink=0.8, label="score")
    return style.captioned(
        figure,
        f"{name}: score matrix R[i, j], the score on task j after training on task i; on the "
        "framed diagonal, right after task j itself. Means over seeds, "
        f"{style.count_seeds(cells)}.",
    )
