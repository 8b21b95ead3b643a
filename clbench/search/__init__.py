"""Learning rates by depth: combining what searches found."""

from clbench.search.combine import Combination, combine
from clbench.search.logs import read_log
from clbench.search.trial import Trial

__all__ = ["Combination", "Trial", "combine", "read_log"]
