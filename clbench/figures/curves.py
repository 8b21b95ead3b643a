"""What happens to the scores step by step and stage by stage."""

from statistics import fmean

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clbench.core.errors import ArgumentError
from clbench.figures import style
from clbench.results.cell import CellResult

DISTANCE, ANNEALING = "distance", "lambda"
"""Curves of methods with an anchor; ``distance.GROUP`` is the distance of one layer group."""
DRIFT = "drift"
"""Curve of the distance to the pretrained weights, where the pretraining is the first task."""

SHARES = (
    "Mean and range over seeds; where their stages differ in length, at equal shares of them, with "
    "the mean of the steps"
)


@style.in_report("forgetting curves", order=40, per="scenario")
def curves(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the forgetting curve: scores on the old and new task over the last stage's steps."""
    cells, name = style.one_scenario(results, scenario)
    tasks = cells[0].tasks
    first, last, times = tasks[0], tasks[-1], tasks.count(tasks[-1])
    keys = first, last if times == 1 else f"{last} ({times})"  # as in the curves
    cells = [cell for cell in cells if _points(cell, "scores", first)]
    if not cells:
        raise ArgumentError(f"no cell of {name} has curves: its suite has curve_points = 0")
    looks = style.looks(cells)
    labels = style.short_labels([first, last])
    figure, grid = style.panels(2, width=4.2)
    after = 1.06 * max(cell.stages[-1].steps for cell in cells)
    sides = zip(grid, (first, last), keys, ("old", "new"), (0, -1), strict=True)
    for axes, task, key, word, column in sides:
        for method, some in style.by_scenario(cells)[name].items():
            series = [_points(cell, "scores", key) for cell in some]
            style.draw_over_seeds(axes, _aligned(series), looks[method])
            score = fmean(cell.R[-1][column] or 0.0 for cell in some)
            color, mark, scale, _ = looks[method]
            axes.plot([after], [score], mark, ms=6 * scale, color=color, mfc="white")
        _frame(axes, f"{word} task: {labels[task]}", f"step on {labels[last]}", "score")
    style.legend(figure, looks)
    limit = cells[0].settings.get("protocol", {}).get("curve_rows")
    rows = f"at most {limit} rows" if limit else "some rows"
    return style.captioned(
        figure,
        f"{name}: scores on the first and last task while the last one is learned, on {rows} "
        f"of each (in stages too short for that: before and after, on all rows). "
        f"{SHARES}; {style.count_seeds(cells)}. Open marks: means of the final scores, on all "
        "rows, after consolidation, in which methods such as wise-ft change the weights; curves "
        "are from before it, but for stages too short.",
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
        raise ArgumentError(f"no method of {name} records a distance to its anchor")
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
        style.draw_over_seeds(grid[0], _aligned(losses), looks[method], marks=8)
        style.draw_over_seeds(grid[1], _aligned(distances), looks[method], marks=8)
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
            style.draw_over_seeds(grid[-1], _aligned(series), looks[method], marks=8)
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
        + f". {SHARES}; {style.count_seeds(used)}.",
    )


def _frame(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.locator_params(axis="x", integer=True)
    axes.grid(axis="y", lw=0.4, alpha=0.6)


def _draw_groups(axes: Axes, cells: list[CellResult]) -> None:
    names = _groups(cells[0])
    for number, name in enumerate(names):
        color = to_hex(colormaps["viridis"](0.9 * number / max(1, len(names) - 1)))
        series = [_points(cell, name) for cell in cells]
        style.draw_over_seeds(axes, _aligned(series), style.Look(color, ""))
        axes.get_lines()[-1].set_label(name.removeprefix(f"{DISTANCE}.").replace(".", " "))
    axes.legend(fontsize="xx-small", frameon=False, ncols=2)


def _points(cell: CellResult, curve: str, task: str | None = None) -> style.Points:
    """Return steps and values of a curve of the last stage; of scores, those on one task."""
    return cell.stages[-1].points(curve, task)


def _aligned(series: list[style.Points]) -> list[style.Points]:
    """Return curves of seeds at equal shares of the stage that all have, with mean steps."""
    if not all(series):
        return series
    tables = [np.array(points) for points in series]
    begin = max(table[0, 0] / (table[-1, 0] or 1.0) for table in tables)
    steps = max(tables, key=len)[:, 0]
    shares = steps / (steps[-1] or 1.0)
    shares = shares[shares >= begin]
    steps = shares * fmean(table[-1, 0] for table in tables)
    values = [np.interp(shares * table[-1, 0], table[:, 0], table[:, 1]) for table in tables]
    return [list(zip(steps, each, strict=True)) for each in values]


def _distance(cell: CellResult) -> style.Points:
    return _points(cell, DISTANCE) or _points(cell, DRIFT)


def _groups(cell: CellResult) -> list[str]:
    return [name for name in cell.stages[-1].curves if name.startswith(f"{DISTANCE}.")]


FEWEST_TASKS = 3
"""Fewest tasks to draw; with two, all numbers are in the other figures."""
MOST_PANELS = 4
"""Most panels in a row."""


@style.in_report("retention", order=38, per="scenario")
def retention(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the average over the tasks so far, and the score on each task, stage by stage."""
    cells, name = style.one_scenario(results, scenario)
    tasks = cells[0].tasks
    if len(tasks) < FEWEST_TASKS:
        raise ArgumentError(f"{name} has {len(tasks)} tasks; retention needs {FEWEST_TASKS}")
    looks, labels = style.looks(cells), style.short_labels(tasks)
    panels = min(MOST_PANELS, len(tasks))
    # The last task is scored once only.
    figure, grid = style.panels(len(tasks), width=10.2 / panels, height=2.3, columns=panels)
    for axes, task in zip(grid, [None, *range(len(tasks) - 1)], strict=True):
        for method, some in style.by_scenario(cells)[name].items():
            style.draw_over_seeds(axes, [_stage_means(cell, task) for cell in some], looks[method])
        title = "average so far" if task is None else labels[tasks[task]]
        _frame(axes, title, "tasks learned", "score")
        axes.title.set_fontweight("bold" if task is None else "normal")
        axes.set_xlim(0.8, len(tasks) + 0.2)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    style.legend(figure, looks)
    return style.captioned(
        figure,
        f"{name}: average score over the tasks learned so far, and the score on each task but the "
        "last from the stage that trains it on, R[j, j] to R[n, j]; mean and range over seeds, "
        f"{style.count_seeds(cells)}.",
    )


def _stage_means(cell: CellResult, task: int | None) -> style.Points:
    """Return the stage, from 1, and the score on a task; None averages the tasks so far."""
    points: style.Points = []
    for stage, row in enumerate(cell.R):
        scores = row[: stage + 1] if task is None else row[task : task + 1]
        if (task is None or stage >= task) and None not in scores:
            points.append((stage + 1, fmean(score for score in scores if score is not None)))
    return points


@style.in_report("heads and features", order=39, per="scenario")
def probes(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw the average over the tasks so far of the heads, and of linear probes of the features.

    Raises an ArgumentError without cells that have probes.
    """
    cells, name = style.one_scenario(results, scenario)
    cells = [cell for cell in cells if cell.probes]
    if not cells:
        raise ArgumentError(f"{name} has no probes; set probe_rows in the suite's [protocol]")
    looks = style.looks(cells)
    figure, grid = style.panels(2, width=4.2, height=2.8, columns=2)
    for axes, matrix in zip(grid, ("R", "probes"), strict=True):
        for method, some in style.by_scenario(cells)[name].items():
            style.draw_over_seeds(
                axes, [_probe_means(cell, matrix) for cell in some], looks[method]
            )
        title = "heads" if matrix == "R" else "linear probes"
        _frame(axes, title, "tasks learned", "average of probed tasks")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    limits = [axes.get_ylim() for axes in grid]
    for axes in grid:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    style.legend(figure, looks)
    return style.captioned(
        figure,
        f"{name}: average score over the tasks learned so far that have a probe, of the model's "
        "heads (left) and of linear probes of its features (right). Where the heads fall and the "
        "probes do not, the features have kept the tasks. Mean and range over seeds, "
        f"{style.count_seeds(cells)}.",
    )


def _probe_means(cell: CellResult, matrix: str) -> style.Points:
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
