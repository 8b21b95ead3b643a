"""What a method costs against what it forgets."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from clbench.figures import style
from clbench.figures.forgetting import one_scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clbench.results.cell import CellResult

WIDE = 8.0
"""Times so many times the least one get a logarithmic axis; on less it has hardly a tick."""


def costs(results: style.Results, scenario: str | None = None) -> Figure:
    """Draw forgetting against training time and extra memory, a point a method.

    Memory is that of the tensors of a training step at its peak, less vanilla's on the same
    seed; without vanilla it is the whole. Where settings took a search, a hollow mark stands at
    the time with the search, joined to the time of training alone.

    Parameters
    ----------
    results
        A run or cells.
    scenario
        Which; may be left out where there is only one.

    Raises
    ------
    ValueError
        If there is no such scenario, several to choose from, or no cell that states what was
        forgotten.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    cells, name = one_scenario(results, scenario)
    cells = [cell for cell in cells if cell.scores.get("forgetting") is not None]
    if not cells:
        raise ValueError(f"no cell of {name} states what was forgotten")
    shown = style.looks(cells)
    figure, (times, memory) = style.panels(2, width=4.2)
    taken, label, meaning = _memory(cells)
    for method, some in style.by_scenario(cells)[name].items():
        look = shown[method]
        lost = fmean(100 * float(cell.scores.get("forgetting") or 0.0) for cell in some)
        seconds = fmean(cell.train_seconds for cell in some)
        searched = fmean(float(cell.search.get("seconds") or 0.0) for cell in some)
        times.plot(
            [seconds], [lost], look.mark, ms=8 * look.scale, color=look.color, mec="white", zorder=3
        )
        if searched:
            both = [seconds, seconds + searched]
            times.plot(both, [lost, lost], "-", lw=0.8, color=look.color)
            times.plot(
                both[1:],
                [lost],
                look.mark,
                ms=8 * look.scale,
                color=look.color,
                mfc="white",
                zorder=3,
            )
        if method in taken:
            x = fmean(taken[method])
            memory.plot([x], [lost], look.mark, ms=8 * look.scale, color=look.color, mec="white")
    low, high = times.dataLim.intervalx
    if low > 0.0 and high > WIDE * low:
        times.set_xscale("log")
        times.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=6))
        times.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        times.xaxis.set_minor_formatter(NullFormatter())
    hollow = " (hollow: with its search)" if any(cell.search for cell in cells) else ""
    times.set_xlabel(f"training, seconds{hollow}")
    memory.set_xlabel(label)
    for axes in (times, memory):
        axes.axhline(0.0, lw=0.8, color=style.GREY, zorder=0)
        axes.set_ylabel("forgotten, points")
        axes.margins(0.12)
    style.legend(figure, shown)
    return style.captioned(
        figure,
        f"{name}: points (of 100) of the first task that were forgotten, against seconds of "
        f"training over all stages (left) and {meaning}, in 10⁶ bytes (right); means over seeds, "
        f"{style.seeds_in_words(cells)}. Times of cells that share a machine are indications only.",
    )


def _memory(cells: Sequence[CellResult]) -> tuple[dict[str, list[float]], str, str]:
    """Megabytes by method and seed, the label of their axis, and what they are."""
    counted: dict[str, dict[int, float]] = {}
    for cell in cells:
        if cell.training_memory_mb is not None:
            counted.setdefault(cell.baseline, {})[cell.seed] = cell.training_memory_mb
    if plain := counted.get(style.VANILLA):
        extra = {
            method: [value - plain[seed] for seed, value in seeds.items() if seed in plain]
            for method, seeds in counted.items()
        }
        found = {method: values for method, values in extra.items() if values}
        return found, "memory beyond vanilla's, MB", (
            "memory of a training step's tensors beyond vanilla's on the same seed"
        )  # fmt: skip
    if counted:
        whole = {method: list(seeds.values()) for method, seeds in counted.items()}
        return whole, "memory, MB", "memory of a training step's tensors"
    # Cells of earlier versions know only that of the process or, on CUDA, of the allocator.
    peaks: dict[str, list[float]] = {}
    for cell in cells:
        if cell.peak_memory_mb is not None:
            peaks.setdefault(cell.baseline, []).append(cell.peak_memory_mb)
    return peaks, "peak memory of the process, MB", "peak memory of the process"
