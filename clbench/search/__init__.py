"""Search learning rates by depth, and combine the results of several searches."""

from __future__ import annotations

from typing import Any

from clbench.search.combination import Combination, Trial, combine
from clbench.search.experiment import SearchListener, SearchPlan, make_search, search
from clbench.search.outcome import SearchOutcome
from clbench.search.search_folder import SearchFolder, TrialRecord
from clbench.search.sources import read_log
from clbench.search.space import SearchSettings

__all__ = [
    "Combination",
    "SearchFolder",
    "SearchListener",
    "SearchOutcome",
    "SearchPlan",
    "SearchSettings",
    "Trial",
    "TrialRecord",
    "combine",
    "make_search",
    "read_log",
    "search",
]


def __getattr__(name: str) -> Any:
    if name != "Found":
        raise AttributeError(f"module 'clbench.search' has no attribute {name!r}")
    import warnings

    warnings.warn("Found is now called SearchOutcome", DeprecationWarning, stacklevel=2)
    return SearchOutcome
