"""Figures of results; each function returns a matplotlib Figure and needs no display."""

from clbench.figures.rates import rate_distributions
from clbench.figures.search import search_trace

__all__ = ["rate_distributions", "search_trace"]
