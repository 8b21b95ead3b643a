"""Trade-off curves: p_o against p_s over the settings of each method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clbench.figures import style
from clbench.results.fronts import curves, front, mean_points
from clbench.results.scores import SCORE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.in_report("Trade-off curves", order=12)
def fronts(results: style.Results) -> Figure:
    """Draw p_o against p_s of every setting of swept methods, and join those on each front.

    Raises a ValueError if no baseline was run at several settings.
    """
    cells = [cell for cell in style.all_cells(results) if cell.status == "ok"]
    by_scenario = curves(cells)
    if not by_scenario:
        raise ValueError("no baseline was run at several settings")
    names = dict.fromkeys(name for by_name in by_scenario.values() for name in by_name)
    looks = style.looks_of(names)
    labels = style.short_labels(by_scenario)
    figure, grid = style.panels(len(by_scenario))
    for axes, (scenario, by_name) in zip(grid, by_scenario.items(), strict=True):
        for name, curve in by_name.items():
            color, mark, scale, _ = looks[name]
            points = mean_points(curve)
            best = front(points)
            axes.plot(*zip(*points.values(), strict=True), mark, ls="none", ms=4 * scale,
                      color=color, alpha=0.45)  # fmt: skip
            axes.plot(*zip(*(points[point] for point in best), strict=True), mark, ls="-", lw=1.2,
                      ms=6 * scale, color=color, mec="white")  # fmt: skip
        axes.set_title(labels[scenario], fontsize="medium")
        axes.set_xlabel(f"{SCORE['p_s'].label}, {SCORE['p_s'].meaning}")
        axes.set_ylabel(f"{SCORE['p_o'].label}, {SCORE['p_o'].meaning}")
        axes.margins(0.08)
        axes.locator_params(nbins=style.TICKS)
        style.widen(axes)
    style.legend(figure, looks)
    return style.captioned(
        figure,
        "Score on the old task (p_o) against score on the new task (p_s) after training on both, "
        f"as fractions, {style.count_seeds(cells)}. A mark is the mean of one setting; lines join "
        "the settings of a method that none of its others beats in both scores.",
    )
