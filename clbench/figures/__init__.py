"""Figures of results: each function returns a matplotlib Figure and needs no display.

Most take `results`, which is the result of `clbench.run` or `clbench.load_run` or a list of cells;
those of one scenario also take its name, which may be omitted if there is only one. `shift` takes a
run or its folder, `rate_distributions` rates, and `search_trace` the trials of a search.
``figure.get_label()`` is the caption. It raises an ArgumentError if there is nothing to draw.

A function in this package that is decorated with `clbench.figures.style.in_report` appears in every
report; it need not be named anywhere else.
"""

import importlib
import pkgutil

from clbench.figures.curves import anchor_distances, curves, probes, retention
from clbench.figures.forgetting import costs, forgetting, matrices
from clbench.figures.inputs import rate_distributions, search_trace, shift
from clbench.figures.style import REPORT_FIGURES, ReportFigure
from clbench.figures.tradeoff import fronts, matched, overall, tradeoff

__all__ = [
    "anchor_distances",
    "costs",
    "curves",
    "forgetting",
    "fronts",
    "matched",
    "matrices",
    "overall",
    "probes",
    "rate_distributions",
    "report_figures",
    "retention",
    "search_trace",
    "shift",
    "tradeoff",
]


def report_figures() -> list[ReportFigure]:
    """Return the figures of a report, in order, from all modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(REPORT_FIGURES, key=lambda figure: figure.order)
