"""How much a model differs from itself, run to run, and what that adds to a change.

Items that flip independently from run to run give a run's mean the variance w / n, if w is an
item's variance between runs, averaged over n items; paired differences show that. They do not show
what all items of a run share. A shift of their log-odds (of the natural parameter of an exponential
family: McCullagh & Nelder 1989, section 2.2.2) with the variance σ² moves the mean by w for each
unit, so it adds σ² w². It is estimated by the variances S² of the runs' means, with ν, the number
of runs less one, as degrees of freedom, of all models and tasks: σ² = Σ ν S² / Σ ν w². The variance
of a mean is the largest of w / n, σ² w², and S² itself. `benchmarks/logs.py runs` simulates alarms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import stdtrit

from clbench.audit.changes import Floor, Sample, widened
from clbench.audit.logs.scores import LoggedScores
from clbench.results.statistics import ALPHA

Pair = tuple[LoggedScores, LoggedScores]


@dataclass(frozen=True)
class RunNoise:
    """The noise of two models' runs: degrees of freedom ν, σ², and the tests of the family."""

    freedom: int
    shift: float
    tests: int

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Self:
        """Return the noise, pooled over models and the measures by which they are judged."""
        found = [spread for spread in map(_spread, pairs) if spread[1]]
        between = sum(freedom * between for freedom, _, between in found)
        squares = sum(freedom * within**2 for freedom, within, _ in found)
        return cls(sum(spread[0] for spread in found), between / (squares or 1.0), len(pairs))

    def variance(self, pair: Pair) -> float:
        """Return the variance of the mean of one run."""
        _, within, between = _spread(pair)
        n = sum(each.runs.shape[1] for each in pair) / 2
        return float(max(within / n, between, self.shift * within**2))

    def floor(self, pair: Pair, *, alone: bool = False) -> Floor | None:
        """Return the half width at a level of a model's difference from itself, if it has one.

        That is for the difference between the models; `alone`, for the tuned model's own score.
        """
        means = sum(1 / len(each.runs) for each in (pair[1:] if alone else pair))
        if not self.freedom or not (variance := means * self.variance(pair)):
            return None
        return lambda level: math.sqrt(variance) * float(stdtrit(self.freedom, (1 + level) / 2))

    def add(self, sample: Sample, pair: Pair) -> Sample:
        """Return a change with the noise of its runs."""
        if (floor := self.floor(pair)) is None:
            return sample
        shares = all(np.isin(each.runs, (0.0, 1.0)).all() for each in pair)
        most = 1.0 if shares else math.inf
        return widened(sample, floor, (-most, most))

    def note(self, pair: Pair) -> str:
        """Return the floor of a task in words; empty if each model has one run."""
        runs = f"{pair[0].task}: {len(pair[0].runs)} and {len(pair[1].runs)} runs"
        if (floor := self.floor(pair)) is None:
            equal = any(len(each.runs) > 1 for each in pair)
            return f"{runs}; those of one model have the same scores." if equal else ""
        most = floor(1.0 - ALPHA / self.tests)
        return f"{runs}; a model differs from itself by up to {most:.3f}, which the interval has."


def _spread(pair: Pair) -> tuple[int, float, float]:
    """Return ν, w and S² of a task, the latter two 0 without repeated runs."""
    freedom = sum(len(each.runs) - 1 for each in pair)
    within = sum(len(each.runs) * float(each.runs.var(axis=0).mean()) for each in pair)
    between = sum(len(each.runs) * float(each.runs.mean(axis=1).var()) for each in pair)
    return freedom, within / max(freedom, 1), between / max(freedom, 1)
