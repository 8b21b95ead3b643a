"""Learning rates by depth: searching for them, and combining what searches found."""

from clbench.search.combine import Combination, combine
from clbench.search.logs import read_log
from clbench.search.outcome import Found
from clbench.search.search import SearchListener, SearchPlan, SearchSettings, make_search, search
from clbench.search.search_folder import SearchFolder
from clbench.search.trial import Trial

__all__ = [
    "Combination",
    "Found",
    "SearchFolder",
    "SearchListener",
    "SearchPlan",
    "SearchSettings",
    "Trial",
    "combine",
    "make_search",
    "read_log",
    "search",
]
