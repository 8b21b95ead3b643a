"""Differences with their intervals, as the sentences of pages of findings say them."""

from __future__ import annotations

from clbench.results.statistics import Comparison
from tools.findings import plain


def more(found: Comparison) -> str:
    """Return how much more is lost, kept or learned, with its interval."""
    ends = found.difference, found.difference_low, found.difference_high
    return "{} [{}, {}]".format(*map(plain, ends))


def less(found: Comparison) -> str:
    """Return how much less is lost, kept or learned, with its interval."""
    ends = -found.difference, -found.difference_high, -found.difference_low
    return "{} [{}, {}]".format(*map(plain, ends))
