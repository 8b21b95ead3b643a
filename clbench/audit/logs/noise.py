"""How much a model differs from itself, run to run, and what that adds to a change.

docs/audit.md derives it: the variance of a run's mean is φ w / n, where w is that of an item
between runs, and φ, which is 1 if items flip independently, is estimated like the dispersion of a
quasi-likelihood (McCullagh & Nelder 1989, section 4.5) from the means of the runs.
`benchmarks/logs.py runs` simulates false alarms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from scipy.special import stdtrit

from clbench.audit.changes import Sample, widened
from clbench.audit.logs.scores import LoggedScores
from clbench.results.statistics import ALPHA

Pair = tuple[LoggedScores, LoggedScores]


@dataclass(frozen=True)
class RunNoise:
    """The noise of two models' runs: degrees of freedom, φ, and the tests of the family."""

    freedom: int
    dispersion: float
    tests: int

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Self:
        """Return the noise, pooled over models and the measures by which they are judged."""
        found = [(freedom, own) for freedom, own, _ in map(_spread, pairs) if own]
        freedom = sum(each for each, _ in found)
        return cls(freedom, sum(each * own for each, own in found) / max(freedom, 1), len(pairs))

    def floor(self, pair: Pair) -> Callable[[float], float] | None:
        """Return the half width at a level of a model's difference from itself, if it has one."""
        _, own, variance = _spread(pair)
        if not self.freedom or not own:
            return None
        error = math.sqrt(max(1.0, self.dispersion, own) * variance)
        return lambda level: error * float(stdtrit(self.freedom, (1.0 + level) / 2))

    def add(self, sample: Sample, pair: Pair) -> Sample:
        """Return a change with the noise of its runs."""
        floor, n = self.floor(pair), pair[0].runs.shape[1]
        return sample if floor is None else widened(sample, floor, _spread(pair)[2] * n)

    def note(self, pair: Pair) -> str:
        """Return the floor of a task in words; empty if each model has one run."""
        runs = f"{pair[0].task}: {len(pair[0].runs)} and {len(pair[1].runs)} runs"
        if (floor := self.floor(pair)) is None:
            equal = any(len(each.runs) > 1 for each in pair)
            return f"{runs}; those of one model have the same scores." if equal else ""
        most = floor(1.0 - ALPHA / self.tests)
        return f"{runs}; a model differs from itself by up to {most:.3f}, which the interval has."


def _spread(pair: Pair) -> tuple[int, float, float]:
    """Return degrees of freedom, φ, and the variance of the difference if φ is 1, or zeros."""
    freedom = sum(len(each.runs) - 1 for each in pair)
    within = sum(len(each.runs) * float(each.runs.var(axis=0).mean()) for each in pair)
    if not within:
        return freedom, 0.0, 0.0
    between = sum(each.runs.size * float(each.runs.mean(axis=1).var()) for each in pair)
    variance = sum(within / freedom / each.runs.size for each in pair)
    return freedom, between / within, variance
