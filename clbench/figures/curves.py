"""What happens step by step while the last task is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clbench.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult

DISTANCE, ANNEALING = "distance", "lambda"
"""Curves of methods with an anchor; ``distance.GROUP`` is the distance of one layer group."""
DRIFT = "drift"
"""Curve of the distance to the pretrained weights, where the pretraining is the first task."""


@style.in_report("forgetting curves", order=40, per="scenario")
def curves(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the forgetting curve: scores on the old and new task over the last stage's steps."""
    cells, name = style.one_scenario(results, scenario)
    first, last = cells[0].tasks[0], cells[0].tasks[-1]
    cells = [cell for cell in cells if _points(cell, "scores", first)]
    if not cells:
        raise ValueError(f"no cell of {name} has curves: its suite has curve_points = 0")
    looks = style.looks(cells)
    labels = style.short_labels([first, last])
    figure, grid = style.panels(2, width=4.2)
    for axes, task, word in zip(grid, (first, last), ("old", "new"), strict=True):
        for method, some in style.by_scenario(cells)[name].items():
            series = [_points(cell, "scores", task) for cell in some]
            style.draw_over_seeds(axes, series, looks[method])
        _frame(axes, f"{word} task: {labels[task]}", f"step on {labels[last]}", "score")
    style.legend(figure, looks)
    limit = cells[0].settings.get("protocol", {}).get("curve_rows")
    rows = f"at most {limit} rows" if limit else "some rows"
    return style.captioned(
        figure,
        f"{name}: scores on the first and last task while the last one is learned, on {rows} "
        f"of each (in stages too short for that: before and after, on all rows); mean "
        f"and range over seeds, {style.count_seeds(cells)}.",
    )


@style.in_report("distance to the anchor", order=50, name="anchor", per="scenario")
def anchor_distances(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw loss, distance to the anchor and λ over the last stage (Chen et al. 2020, figures 2, 1).

    The Euclidean distance is that of all shared weights, and of each layer group for the first
    method that has groups; λ(t) weights the task's loss. Methods without an anchor are left out,
    or, where the pretraining is the first task, shown by their distance to the pretrained weights.
    """
    cells, name = style.one_scenario(results, scenario)
    last = cells[0].tasks[-1]
    groups = style.by_scenario(cells)[name]
    methods = {method: some for method, some in groups.items() if all(map(_distance, some))}
    if not methods:
        raise ValueError(f"no method of {name} records a distance to its anchor")
    all_looks = style.looks(cells)
    looks = {method: all_looks[method] for method in methods}
    grouped = next((some for some in methods.values() if _groups(some[0])), [])
    annealed = {
        method: series
        for method, some in methods.items()
        if all(series := [_points(cell, ANNEALING) for cell in some])
    }
    figure, grid = style.panels(2 + bool(grouped) + bool(annealed), width=4.4, columns=2)
    for method, some in methods.items():
        losses, distances = [_points(cell, "loss") for cell in some], list(map(_distance, some))
        style.draw_over_seeds(grid[0], losses, looks[method], marks=8)
        style.draw_over_seeds(grid[1], distances, looks[method], marks=8)
    labels = style.short_labels([last, *methods])
    step = f"step on {labels[last]}"
    _frame(grid[0], "training loss", step, "loss")
    _frame(grid[1], "distance to the anchor", step, "Euclidean distance")
    if grouped:
        _draw_groups(grid[2], grouped)
        _frame(
            grid[2], f"{labels[grouped[0].baseline]}: by layer group", step, "Euclidean distance"
        )
    if annealed:
        for method, series in annealed.items():
            style.draw_over_seeds(grid[-1], series, looks[method], marks=8)
        _frame(grid[-1], "λ, weight of the task's loss", step, "λ")
        grid[-1].set_ylim(-0.03, 1.03)
    style.legend(figure, looks)
    used = [cell for some in methods.values() for cell in some]
    drifts = not all(_points(cell, DISTANCE) for cell in used)
    return style.captioned(
        figure,
        f"{name}: training loss and Euclidean distance of the shared weights to the anchor"
        + (" (for methods without one, to the pretrained weights)" if drifts else "")
        + f" while {last} is learned"
        + (f", also by layer group for {grouped[0].baseline}" if grouped else "")
        + (", and λ" if annealed else "")
        + f"; mean and range over seeds, {style.count_seeds(used)}.",
    )


def _frame(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.locator_params(axis="x", integer=True)
    axes.grid(axis="y", lw=0.4, alpha=0.6)


def _draw_groups(axes: Axes, cells: list[CellResult]) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    names = _groups(cells[0])
    for number, name in enumerate(names):
        color = to_hex(colormaps["viridis"](0.9 * number / max(1, len(names) - 1)))
        series = [_points(cell, name) for cell in cells]
        style.draw_over_seeds(axes, series, style.Look(color, ""))
        axes.get_lines()[-1].set_label(name.removeprefix(f"{DISTANCE}.").replace(".", " "))
    axes.legend(fontsize="xx-small", frameon=False, ncols=2)


def _points(cell: CellResult, curve: str, task: str | None = None) -> style.Points:
    """Return steps and values of a curve of the last stage; of scores, those on one task."""
    return cell.stages[-1].points(curve, task)


def _distance(cell: CellResult) -> style.Points:
    return _points(cell, DISTANCE) or _points(cell, DRIFT)


def _groups(cell: CellResult) -> list[str]:
    return [name for name in cell.stages[-1].curves if name.startswith(f"{DISTANCE}.")]
