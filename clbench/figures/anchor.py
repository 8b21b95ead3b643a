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
DRIFT = "drift"
"""Distance to the pretrained weights, which scenarios of the shift ``pretraining`` record."""


def anchor_distances(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw loss, distance to the anchor and λ over the last stage (Chen et al. 2020, figures 2, 1).

    The training loss, and the Euclidean distance of all shared weights to the anchor, a line a
    method; the distance of each layer group for the first method with an anchor; λ(t), the weight
    of the task. Where the pretraining is the first task, methods without an anchor are shown by
    their distance to the pretrained weights; elsewhere they are left out.

    Parameters
    ----------
    results
        A run or cells.
    scenario
        Which; may be left out where there is only one.

    Raises
    ------
    ValueError
        If there is no such scenario, several to choose from, or no distance to draw.
    """
    cells, name = one_scenario(results, scenario)
    methods = {
        method: some
        for method, some in style.by_scenario(cells)[name].items()
        if all(_distance(cell) for cell in some)
    }
    if not methods:
        raise ValueError(f"no method of {name} records a distance to its anchor")
    shown = style.looks(cells)
    divided = next((some for some in methods.values() if _groups(some)), [])
    weighed = {m: some for m, some in methods.items() if all(_lambda(cell) for cell in some)}
    panels: list[tuple[str, str]] = [
        ("training loss", "loss"),
        ("distance to the anchor", "Euclidean distance"),
    ]
    if divided:
        panels.append((f"{divided[0].baseline}: by group", "Euclidean distance"))
    if weighed:
        panels.append(("λ, the weight of the task", "λ"))
    figure, grid = style.panels(len(panels), width=4.4, columns=2)
    last = cells[0].tasks[-1]
    for axes, (title, label) in zip(grid, panels, strict=True):
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel(f"step on {last}")
        axes.set_ylabel(label)
        axes.grid(axis="y", lw=0.4, alpha=0.6)
    for method, some in methods.items():
        _line(grid[0], [_loss(cell) for cell in some], shown[method])
        _line(grid[1], [_distance(cell) for cell in some], shown[method])
    if divided:
        _by_group(grid[2], divided)
    for method, some in weighed.items():
        _line(grid[-1], [_lambda(cell) for cell in some], shown[method])
    if weighed:
        grid[-1].set_ylim(-0.03, 1.03)
    style.legend(figure, {method: shown[method] for method in methods})
    used = [cell for some in methods.values() for cell in some]
    which = "the anchor (without one, to the pretrained weights)" if _drifts(used) else "the anchor"
    by_group = f", also by layer group for {divided[0].baseline}" if divided else ""
    weight = ", and λ" if weighed else ""
    return style.captioned(
        figure,
        f"{name}: training loss and Euclidean distance of the shared weights to {which} while "
        f"{last} is learned{by_group}{weight}; mean and range over seeds, "
        f"{style.seeds_in_words(used)}.",
    )


Points = list[tuple[float, float]]


def _line(axes: Axes, series: list[Points], look: style.Look) -> None:
    x, mean, low, high = over_seeds(series)
    axes.plot(x, mean, "-", lw=1.6, color=look.color)
    axes.plot(x[:: max(1, len(x) // 8)], mean[:: max(1, len(x) // 8)], look.mark, ls="none",
              ms=4 * look.scale, color=look.color)  # fmt: skip
    if len(series) > 1:
        axes.fill_between(x, low, high, color=look.color, alpha=0.12, lw=0)


def _groups(cells: list[CellResult]) -> list[str]:
    return [name for name in cells[0].stages[-1].curves if name.startswith(f"{WHOLE}.")]


def _by_group(axes: Axes, cells: list[CellResult]) -> None:
    from matplotlib import colormaps

    names = _groups(cells)
    for number, name in enumerate(names):
        x, mean, _, _ = over_seeds([_points(cell, name) for cell in cells])
        color = colormaps["viridis"](0.9 * number / max(1, len(names) - 1))
        label = name.removeprefix(f"{WHOLE}.").replace("layer.", "layer ")
        axes.plot(x, mean, "-", lw=1.2, color=color, label=label)
    axes.legend(fontsize="xx-small", frameon=False, ncols=2)


def _drifts(cells: list[CellResult]) -> bool:
    return any(not _points(cell, WHOLE) for cell in cells)


def _distance(cell: CellResult) -> Points:
    return _points(cell, WHOLE) or _points(cell, DRIFT)


def _lambda(cell: CellResult) -> Points:
    return _points(cell, ANNEALING)


def _loss(cell: CellResult) -> Points:
    curves = cell.stages[-1].curves
    return list(zip(curves.get("step", []), curves.get("loss", []), strict=True))


def _points(cell: CellResult, curve: str) -> Points:
    points = cell.stages[-1].curves.get(curve, [])
    return [(float(step), float(value)) for step, value in points]
