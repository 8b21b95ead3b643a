"""Figures of results; each function returns a matplotlib Figure and needs no display."""

from clbench.figures.rates import rate_distributions

__all__ = ["rate_distributions"]
