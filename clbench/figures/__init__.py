"""Figures of results; each function returns a matplotlib Figure and needs no display.

Those of runs take what `clbench.run` and `clbench.load_run` return, or cells; `shift` takes the
run or its folder. ``figure.get_label()`` is the caption.
"""

from clbench.figures.anchor import anchor_distances
from clbench.figures.cost import costs
from clbench.figures.forgetting import curves, forgetting, matrices
from clbench.figures.plane import tradeoff
from clbench.figures.rates import rate_distributions
from clbench.figures.search import search_trace
from clbench.figures.shift import shift

__all__ = [
    "anchor_distances",
    "costs",
    "curves",
    "forgetting",
    "matrices",
    "rate_distributions",
    "search_trace",
    "shift",
    "tradeoff",
]
