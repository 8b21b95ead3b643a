"""Search learning rates by depth, and combine the results of several searches."""

from clbench.search.experiment import SearchOutcome, search
from clbench.search.plan import SearchPlan, SearchSettings, make_search
from clbench.search.rates import Combination, Trial, combine, read_log
from clbench.search.trials import SearchFolder, SearchListener, TrialRecord

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
