"""What the old task keeps against what the new one gains."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from clbench.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult

Point = tuple[float, float]


def tradeoff(results: style.Results) -> Figure:
    """Draw the plane of p_o and p_s, a panel a scenario and a point a method.

    The point is the mean over seeds, each seed a small one joined to it. Dashed lines have equal
    p = p_o + p_s; the grey line joins the methods that no other one beats in both (Pareto front).

    Parameters
    ----------
    results
        A run or cells; failed ones and references are left out.

    Raises
    ------
    ValueError
        If no cell has both scores.
    """
    cells = [c for c in style.good_cells(results) if None not in (_of(c, "p_o"), _of(c, "p_s"))]
    if not cells:
        raise ValueError("no cell has both p_o and p_s")
    shown = style.looks(cells)
    groups = style.by_scenario(cells)
    figure, grid = style.panels(len(groups))
    for axes, (scenario, methods) in zip(grid, groups.items(), strict=True):
        _panel(axes, methods, shown)
        axes.set_title(scenario, fontsize="medium")
        axes.set_xlabel("p_s, score on the new task")
        axes.set_ylabel("p_o, score on the old task")
    style.legend(figure, shown)
    return style.captioned(
        figure,
        "Score on the old task (p_o) against score on the new one (p_s) after training on both, "
        "as fractions; large marks are means, small ones single seeds, "
        f"{style.seeds_in_words(cells)}. Dashed: lines of equal p_o + p_s. Grey: methods that no "
        "other one beats in both, those that keep rows of earlier tasks among them.",
    )


def front(points: dict[str, Point]) -> list[str]:
    """Names of the points that none beats in both coordinates, from left to right.

    One that another equals in one coordinate and falls short of in the other is beaten.
    """
    best = [
        name
        for name, (x, y) in points.items()
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points.values())
    ]
    return sorted(best, key=lambda name: points[name])


def _panel(axes: Axes, methods: dict[str, list[CellResult]], shown: dict[str, style.Look]) -> None:
    means: dict[str, Point] = {}
    for name, cells in methods.items():
        look = shown[name]
        x = [_of(cell, "p_s") or 0.0 for cell in cells]
        y = [_of(cell, "p_o") or 0.0 for cell in cells]
        means[name] = fmean(x), fmean(y)
        there_and_back = [
            [value for each in seeds for value in (mean, each, math.nan)]
            for mean, seeds in zip(means[name], (x, y), strict=True)
        ]
        axes.plot(*there_and_back, "-", color=look.color, lw=0.6, alpha=0.6, zorder=1)
        axes.plot(
            x, y, look.mark, ls="none", ms=3 * look.scale, color=look.color, alpha=0.6, zorder=2
        )
        axes.plot(
            *means[name], look.mark, ms=7 * look.scale, color=look.color, mec="white", zorder=4
        )
    best = front(means)
    axes.plot(
        *zip(*(means[name] for name in best), strict=True), "-", lw=3, color=style.LIGHT, zorder=0
    )
    axes.margins(0.08)
    axes.locator_params(nbins=style.TICKS)
    _equal_sums(axes)


def _equal_sums(axes: Axes) -> None:
    """Lines of equal p_o + p_s at round distances, each labelled where it leaves the panel."""
    from matplotlib.ticker import MaxNLocator

    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for total in MaxNLocator(5).tick_values(left + bottom, right + top):
        x = max(left, total - top)
        end = min(right, total - bottom)
        if end - x < 0.05 * (right - left):
            continue
        axes.plot(
            [x, end], [total - x, total - end], ls=(0, (4, 4)), lw=0.6, color=style.GREY, zorder=0
        )
        axes.annotate(
            f"{total:.4g}",
            (end, total - end),
            xytext=(-2, 2),
            textcoords="offset points",
            fontsize="xx-small",
            color=style.GREY,
            ha="right",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            zorder=0,
        )
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


def _of(cell: CellResult, name: str) -> float | None:
    return cell.scores.get(name)
