"""How far a model is from the weights that a method recalls, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clbench.figures import style
from clbench.figures.forgetting import one_scenario, over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult

WHOLE, ANNEALING = "distance", "lambda"
"""Curves that methods with an anchor record; ``distance.GROUP`` is that of one group."""


def anchor_distances(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the distance to the anchor and λ over the last stage (Chen et al. 2020, figures 2b, 1).

    Left the Euclidean distance of all shared weights to the anchor, a line a method; in the
    middle that of each layer group for the first of these methods; right λ(t), the weight of the
    task. Methods that record none are left out.

    Parameters
    ----------
    results
        A run or cells.
    scenario
        Which; may be left out where there is only one.

    Raises
    ------
    ValueError
        If there is no such scenario, several to choose from, or no method with an anchor.
    """
    cells, name = one_scenario(results, scenario)
    methods = {
        method: some
        for method, some in style.by_scenario(cells)[name].items()
        if all(_points(cell, WHOLE) for cell in some)
    }
    if not methods:
        raise ValueError(f"no method of {name} records a distance to its anchor")
    shown = style.looks(cells)
    figure, (whole, groups, annealing) = style.panels(3, width=3.8)
    for method, some in methods.items():
        look = shown[method]
        _line(whole, some, WHOLE, look)
        if all(_points(cell, ANNEALING) for cell in some):
            _line(annealing, some, ANNEALING, look)
    first, some = next(iter(methods.items()))
    _by_group(groups, some)
    last = cells[0].tasks[-1]
    for axes, title, label in (
        (whole, "distance to the anchor", "Euclidean distance"),
        (groups, f"{first}: by group", "Euclidean distance"),
        (annealing, "λ, the weight of the task", "λ"),
    ):
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel(f"step on {last}")
        axes.set_ylabel(label)
        axes.grid(axis="y", lw=0.4, alpha=0.6)
    annealing.set_ylim(-0.03, 1.03)
    style.legend(figure, {method: shown[method] for method in methods})
    used = [cell for some in methods.values() for cell in some]
    return style.captioned(
        figure,
        f"{name}: Euclidean distance of the shared weights to the anchor while {last} is learned, "
        f"whole (left) and by layer group for {first} (middle, lighter towards the head), and λ "
        f"(right); mean and range over seeds, {style.seeds_in_words(used)}.",
    )


def _line(axes: Axes, cells: list[CellResult], curve: str, look: style.Look) -> None:
    x, mean, low, high = over_seeds([_points(cell, curve) for cell in cells])
    axes.plot(x, mean, "-", lw=1.6, color=look.color)
    axes.plot(x[:: max(1, len(x) // 8)], mean[:: max(1, len(x) // 8)], look.mark, ls="none",
              ms=4 * look.scale, color=look.color)  # fmt: skip
    if len(cells) > 1:
        axes.fill_between(x, low, high, color=look.color, alpha=0.12, lw=0)


def _by_group(axes: Axes, cells: list[CellResult]) -> None:
    from matplotlib import colormaps

    names = [name for name in cells[0].stages[-1].curves if name.startswith(f"{WHOLE}.")]
    for number, name in enumerate(names):
        x, mean, _, _ = over_seeds([_points(cell, name) for cell in cells])
        color = colormaps["viridis"](0.9 * number / max(1, len(names) - 1))
        label = name.removeprefix(f"{WHOLE}.").replace("layer.", "layer ")
        axes.plot(x, mean, "-", lw=1.2, color=color, label=label)
    axes.legend(fontsize="xx-small", frameon=False, ncols=2)


def _points(cell: CellResult, curve: str) -> list[tuple[float, float]]:
    points = cell.stages[-1].curves.get(curve, [])
    return [(float(step), float(value)) for step, value in points]
