"""Score on the old task against score on the new one."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from clbench.figures import style
from clbench.results.fronts import front
from clbench.results.scores import SCORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult


@style.in_report("Old task versus new task", order=10)
def tradeoff(results: style.Results) -> Figure:
    """Draw p_o against p_s, a panel for each scenario and a point for each method.

    A large point is the mean over seeds, joined to a small one for each seed. Dashed lines have
    equal p_o + p_s; the grey line joins the methods that no other beats in both (Pareto front).
    """
    cells = [
        cell
        for cell in style.good_cells(results)
        if cell.scores.get("p_o") is not None and cell.scores.get("p_s") is not None
    ]
    if not cells:
        raise ValueError("no cell has both p_o and p_s")
    looks = style.looks(cells)
    groups = style.by_scenario(cells)
    labels = style.short_labels(groups)
    figure, grid = style.panels(len(groups))
    for axes, (scenario, methods) in zip(grid, groups.items(), strict=True):
        _panel(axes, methods, looks)
        axes.set_title(labels[scenario], fontsize="medium")
        axes.set_xlabel(f"{SCORE['p_s'].label}, {SCORE['p_s'].meaning}")
        axes.set_ylabel(f"{SCORE['p_o'].label}, {SCORE['p_o'].meaning}")
    style.legend(figure, looks)
    return style.captioned(
        figure,
        "Score on the old task (p_o) against score on the new task (p_s) after training on both, "
        "as fractions. Large marks are means, small marks single seeds, "
        f"{style.count_seeds(cells)}. Dashed lines: equal p_o + p_s. Grey line: methods that no "
        "other method beats in both scores, including those that keep rows of earlier tasks.",
    )


def _panel(axes: Axes, methods: dict[str, list[CellResult]], looks: dict[str, style.Look]) -> None:
    means: dict[str, tuple[float, float]] = {}
    for name, cells in methods.items():
        color, mark, scale, _ = looks[name]
        x = [cell.scores["p_s"] or 0.0 for cell in cells]
        y = [cell.scores["p_o"] or 0.0 for cell in cells]
        means[name] = fmean(x), fmean(y)
        spokes = [
            [value for seed in seeds for value in (mean, seed, math.nan)]
            for mean, seeds in zip(means[name], (x, y), strict=True)
        ]
        axes.plot(*spokes, "-", color=color, lw=0.6, alpha=0.6, zorder=1)
        axes.plot(x, y, mark, ls="none", ms=3 * scale, color=color, alpha=0.6, zorder=2)
        axes.plot(*means[name], mark, ms=7 * scale, color=color, mec="white", zorder=4)
    best = zip(*(means[name] for name in front(means)), strict=True)
    axes.plot(*best, "-", lw=3, color=style.LIGHT, zorder=0)
    axes.margins(0.08)
    axes.locator_params(nbins=style.TICKS)
    style.widen(axes)
    _equal_sums(axes)


def _equal_sums(axes: Axes) -> None:
    """Draw lines of equal p_o + p_s at round values, labelled where they leave the panel."""
    from matplotlib.ticker import MaxNLocator

    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for total in MaxNLocator(5).tick_values(left + bottom, right + top):
        start, end = max(left, total - top), min(right, total - bottom)
        if end - start < 0.05 * (right - left):
            continue
        x, y = [start, end], [total - start, total - end]
        axes.plot(x, y, ls=(0, (4, 4)), lw=0.6, color=style.GREY, zorder=0)
        axes.annotate(
            f"{total:.4g}", (end, total - end), xytext=(-2, 2), textcoords="offset points",
            fontsize="xx-small", color=style.GREY, ha="right", zorder=0,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
