"""Forgetting, or for sequences the average score, against cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from clbench.figures import style
from clbench.figures.forgetting import LABEL, with_forgetting
from clbench.figures.retention import FEWEST_TASKS
from clbench.results.scores import SCORE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult

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
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

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
        y = fmean(_averages(some) if is_sequence else with_forgetting(some)[1])
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


def _averages(cells: Sequence[CellResult]) -> list[float]:
    """Return 100 × the mean score over all tasks at the end, for each cell."""
    return [100 * score for cell in cells if (score := cell.scores.get("average")) is not None]


def _memory(cells: Sequence[CellResult]) -> tuple[dict[str, list[float]], str, str]:
    """Return megabytes by method, the label of their axis, and their meaning."""
    per_step = any(cell.training_memory_mb is not None for cell in cells)
    column = "training_memory_mb" if per_step else "peak_memory_mb"  # results of earlier versions
    values: dict[str, dict[int, float]] = {}
    for cell in cells:
        if (megabytes := getattr(cell, column)) is not None:
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
