"""How much is forgotten, of which task, and at what cost."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from clbench.core.errors import ArgumentError, join_names
from clbench.figures import style
from clbench.figures.curves import FEWEST_TASKS
from clbench.results.cell import CellResult, steps_by_scenario
from clbench.results.statistics import summarise
from clbench.suite.schema import FEWEST
from clbench.suite.scores import SCORE

LABEL = f"{SCORE['forgetting'].label} × 100"


def score_of(cell: CellResult) -> str:
    """Return the score that says what a cell forgot: of pairs that of the first task."""
    return "mean_forgetting" if len(cell.tasks) > 2 else "forgetting"


def with_forgetting(cells: list[CellResult]) -> tuple[list[CellResult], list[float]]:
    """Return the cells that have this score, and 100 × the score; ArgumentError if none has."""
    pairs = [(c, 100 * lost) for c in cells if (lost := c.scores.get(score_of(c))) is not None]
    if not pairs:
        names = join_names(dict.fromkeys(cell.scenario for cell in cells))
        raise ArgumentError(f"no cell of {names} has a score for forgetting")
    return [cell for cell, _ in pairs], [lost for _, lost in pairs]


@style.in_report("Forgetting", order=20)
def forgetting(results: style.Results) -> Figure:
    """Draw the forgetting of each method, a panel for each scenario.

    Of pairs it is that of the first task, of longer sequences the mean over the earlier tasks.

    Small marks are seeds, large ones means; lines are 95 % t intervals of the mean with the step
    of the score, drawn from three seeds on.
    """
    cells, _ = with_forgetting(style.good_cells(results))
    looks = style.looks(cells)
    groups = style.by_scenario(cells)
    most = max(len(methods) for methods in groups.values())
    labels = style.short_labels([*groups, *looks])
    width = max(3.8, 2.6 + 0.065 * max(len(labels[name]) for name in looks))
    figure, grid = style.panels(len(groups), width=width, height=0.6 + 0.27 * most)
    steps = steps_by_scenario(cells)
    for axes, (scenario, methods) in zip(grid, groups.items(), strict=True):
        score = score_of(next(iter(methods.values()))[0])
        step = 100 * steps[scenario].get(score, 0.0)
        values = {name: with_forgetting(some)[1] for name, some in methods.items()}
        order = sorted(values, key=lambda name: -fmean(values[name]))
        for row, name in enumerate(order):
            color, mark, scale, _ = looks[name]
            summary = summarise(values[name], step)
            rows = [row] * len(values[name])
            axes.plot(values[name], rows, mark, ms=3 * scale, color=color, alpha=0.5)
            if not math.isnan(summary.low):
                axes.plot([summary.low, summary.high], [row, row], "-", lw=1.6, color=color)
            axes.plot([summary.mean], [row], mark, ms=7 * scale, color=color, mec="white")
        axes.axvline(0.0, lw=0.8, color=style.GREY, zorder=0)
        style.name_rows(axes, [labels[name] for name in order])
        axes.set_xlabel(f"{SCORE[score].label} × 100")
        axes.set_title(labels[scenario], fontsize="medium")
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
                value = round(float(value), 2) + 0.0  # never -0.00
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


WIDE = 8.0
"""Ratio of the longest to the shortest time above which the time axis is logarithmic."""


@style.in_report("cost", order=70, per="scenario")
def costs(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw forgetting against training time and extra memory, a point for each method.

    With three tasks or more, the average score at the end takes the place of forgetting.

    Memory is the peak size of a training step's tensors, minus vanilla's on the same seed if
    vanilla was run. If a method's settings were searched for, a hollow mark shows the time
    including the search, joined to the time of training alone.
    """
    cells, name = style.one_scenario(results, scenario)
    is_sequence = len(cells[0].tasks) >= FEWEST_TASKS
    if not is_sequence:
        cells, _ = with_forgetting(cells)
    looks = style.looks(cells)
    figure, (times, memory) = style.panels(2, width=4.2)
    megabytes, label, meaning = _memory(cells)
    for method, some in style.by_scenario(cells)[name].items():
        color, mark, scale, _ = looks[method]
        size = 8 * scale
        averages = [100 * a for cell in some if (a := cell.scores.get("average")) is not None]
        y = fmean(averages if is_sequence else with_forgetting(some)[1])
        seconds = fmean(cell.train_seconds for cell in some)
        times.plot([seconds], [y], mark, ms=size, color=color, mec="white", zorder=3)
        if searched := fmean(cell.search.get("seconds", 0.0) for cell in some):
            total = seconds + searched
            times.plot([seconds, total], [y, y], "-", lw=0.8, color=color)
            times.plot([total], [y], mark, ms=size, color=color, mfc="white", zorder=3)
        if method in megabytes:
            x = fmean(megabytes[method])
            memory.plot([x], [y], mark, ms=size, color=color, mec="white")
    low, high = times.dataLim.intervalx
    if low > 0.0 and high > WIDE * low:
        times.set_xscale("log")
        times.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=6))
        times.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        times.xaxis.set_minor_formatter(NullFormatter())
    hollow = " (hollow: with search)" if any(cell.search for cell in cells) else ""
    times.set_xlabel(f"training, seconds{hollow}")
    memory.set_xlabel(label)
    for axes in (times, memory):
        if not is_sequence:
            axes.axhline(0.0, lw=0.8, color=style.GREY, zorder=0)
        axes.set_ylabel(f"{SCORE['average'].label} × 100" if is_sequence else LABEL)
        axes.margins(0.12)
    style.legend(figure, looks)
    score = "average score at the end" if is_sequence else "forgetting on the first task"
    return style.captioned(
        figure,
        f"{name}: {score} (× 100) against seconds of training over all stages "
        f"(left) and {meaning}, in 10⁶ bytes (right); means over seeds, "
        f"{style.count_seeds(cells)}. Times of cells that ran side by side are only indicative.",
    )


def _memory(cells: Sequence[CellResult]) -> tuple[dict[str, list[float]], str, str]:
    """Return megabytes by method, the label of their axis, and their meaning."""
    per_step = any(cell.training_memory_mb is not None for cell in cells)
    field = "training_memory_mb" if per_step else "peak_memory_mb"  # results of earlier versions
    values: dict[str, dict[int, float]] = {}
    for cell in cells:
        if (megabytes := getattr(cell, field)) is not None:
            values.setdefault(cell.baseline, {})[cell.seed] = megabytes
    if per_step and (vanilla := values.get(style.VANILLA)):
        values = {
            method: {seed: seeds[seed] - vanilla[seed] for seed in seeds.keys() & vanilla}
            for method, seeds in values.items()
        }
        label = "memory beyond vanilla's, MB"
        meaning = "memory of a training step's tensors beyond vanilla's on the same seed"
    elif per_step:
        label, meaning = "memory, MB", "memory of a training step's tensors"
    else:
        label, meaning = "peak memory, MB", "peak memory (CUDA: allocator; else: process)"
    return {name: list(seeds.values()) for name, seeds in values.items() if seeds}, label, meaning
