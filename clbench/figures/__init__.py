"""Figures of results; each function returns a matplotlib Figure and needs no display.

Those of runs take what `clbench.run` returns, or cells. ``figure.get_label()`` is the caption.
"""

from clbench.figures.anchor import anchor_distances
from clbench.figures.cost import costs
from clbench.figures.forgetting import curves, forgetting, matrices
from clbench.figures.plane import tradeoff
from clbench.figures.rates import rate_distributions
from clbench.figures.search import search_trace

__all__ = [
    "anchor_distances",
    "costs",
    "curves",
    "forgetting",
    "matrices",
    "rate_distributions",
    "search_trace",
    "tradeoff",
]
