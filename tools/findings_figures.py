"""Figures of the findings: differences with their intervals, one below the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from clbench.figures import style
from clbench.results.statistics import Comparison

WIDTH = 7.2
"""Width of a figure in inches, so that a page 700 pixels wide shows it at its own size."""


class Mark(NamedTuple):
    """A difference with its interval, and whether it has a verdict."""

    value: float
    low: float = math.nan
    high: float = math.nan
    has_verdict: bool = True


def mark(answer: Comparison) -> Mark:
    """Return a comparison as a figure shows it."""
    has_verdict = answer.verdict in ("better", "worse", "equivalent")
    ends = answer.difference_low, answer.difference_high
    return Mark(answer.difference, *ends, has_verdict)


def forest(
    panels: Mapping[str, Mapping[str, Mapping[str, Mark]]], caption: str, *, margin: float = 0.0
) -> Figure:
    """Draw marks with their intervals by panel, series and row; open where there is no verdict."""
    series = list(dict.fromkeys(name for by_series in panels.values() for name in by_series))
    marks = [rows for by_series in panels.values() for rows in by_series.values()]
    names = list(dict.fromkeys(name for rows in marks for name in rows))
    height = (0.16 * len(series) + 0.1) * len(names) + 0.4
    width = WIDTH / len(panels)
    figure, grid = style.panels(len(panels), width=width, height=height, columns=len(panels))
    looks = {s: style.Look(c, "o") for s, c in zip(series, style.PALETTE, strict=False)}
    for axes, (title, by_series) in zip(grid, panels.items(), strict=True):
        style.name_rows(axes, list(reversed(names)) if axes is grid[0] else [""] * len(names))
        axes.axvline(0.0, lw=0.8, color=style.GREY, zorder=0)
        axes.axvspan(-margin, margin, color=style.GREY, alpha=0.15, lw=0)
        axes.set_title(title, fontsize="medium")
        if len(panels) > 2:
            axes.locator_params(axis="x", nbins=4)
        for label, rows in by_series.items():
            color = looks[label].color
            offset = 0.25 * ((len(series) - 1) / 2 - series.index(label))
            for name, (value, low, high, has_verdict) in rows.items():
                y = len(names) - 1 - names.index(name) + offset
                axes.plot([low, high], [y] * 2, "-", lw=2, color=color, solid_capstyle="butt")
                face = color if has_verdict else "white"
                axes.plot([value], [y], "o", ms=6, color=color, mfc=face)
    if len(series) > 1:
        style.legend(figure, looks)
    return style.captioned(figure, caption)


def points_figure(
    frame: pd.DataFrame,
    panels: Sequence[tuple[str, str]],
    labels: Mapping[str, str],
    series: Mapping[str, Sequence[str]],
    caption: str,
) -> Figure:
    """Draw one score of each seed against another, and their means.

    Parameters
    ----------
    frame
        Rows with the columns ``baseline`` and the scores.
    panels
        Pairs of scores: across, up.
    labels
        What each score is called.
    series
        Baselines of each mark; a line joins the means of several.
    caption
        A sentence below.
    """
    figure, grid = style.panels(len(panels), width=4.6, height=3.4, columns=len(panels))
    looks = style.looks_of([*series])
    for axes, (x, y) in zip(grid, panels, strict=True):
        for name, (color, mark, scale, _) in looks.items():
            own = frame[frame["baseline"].isin(series[name])]
            axes.plot(own[x], own[y], mark, ls="none", ms=2 * scale, color=color, alpha=0.4)
            middle = own.groupby("baseline")[[x, y]].mean().loc[[*series[name]]]
            axes.plot(middle[x], middle[y], f"{mark}-", ms=5 * scale, color=color)
        axes.set_xlabel(labels[x])
        axes.set_ylabel(labels[y])
    style.legend(figure, looks)
    return style.captioned(figure, caption)
