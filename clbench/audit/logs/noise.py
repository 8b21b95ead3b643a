"""How much a model differs from itself, run to run, and what that adds to a change.

A model whose items flip independently of each other from run to run has a mean score of variance
w / n, if w is the variance of an item's score between runs, averaged over the n items. Its flips
are in the paired differences of items already, whatever the number of runs. What these cannot show
is what all items of a run share, such as another kernel or another order of batches: it raises the
variance of a run's mean to φ w / n. So, as for quasi-likelihoods (McCullagh & Nelder 1989, section
4.5), φ is estimated by the variance S² of the means of the runs, φ = S² n / w, pooled over models
and tasks, with ν, the number of runs less one for each, as its degrees of freedom. The dispersion
of a task is the largest of 1, that of all tasks, and its own. The difference between the means of
r and s runs then has a floor: two models are as different as one from itself if they differ by
less than t_ν √(φ w / n (1/r + 1/s)), the half width of the interval of t. It is added to the
interval of the items (`clbench.audit.changes.widened`), although that has a part of it, so
intervals are too wide rather than too narrow. `benchmarks/audit.py --runs` simulates false alarms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from clbench.audit.changes import Sample, widened
from clbench.audit.logs.scores import LoggedScores
from clbench.results.statistics import ALPHA

Pair = tuple[LoggedScores, LoggedScores]


@dataclass(frozen=True)
class RunNoise:
    """The noise of two models' runs.

    Attributes
    ----------
    freedom
        Degrees of freedom; 0 if no model has two runs of a task.
    dispersion
        φ, pooled over models and tasks.
    tests
        Changes that are judged as one family.
    """

    freedom: int
    dispersion: float
    tests: int

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "RunNoise":
        """Return the noise of the measures by which two models are judged."""
        found = [(freedom, own) for pair in pairs for freedom, own, _ in [_spread(pair)] if own]
        freedom = sum(each for each, _ in found)
        pooled = sum(each * own for each, own in found) / max(freedom, 1)
        return cls(freedom, pooled, len(pairs))

    def floor(self, pair: Pair) -> Callable[[float], float] | None:
        """Return the half width of a model's difference from itself at a level; None without runs."""
        _, own, variance = _spread(pair)
        if not self.freedom or not own:
            return None
        error = math.sqrt(max(1.0, self.dispersion, own) * variance)
        return lambda level: error * float(stdtrit(self.freedom, (1.0 + level) / 2))

    def add(self, sample: Sample, pair: Pair) -> Sample:
        """Return a change with the noise of its runs."""
        if (floor := self.floor(pair)) is None:
            return sample
        return widened(sample, floor, _spread(pair)[2] * pair[0].runs.shape[1])

    def note(self, pair: Pair) -> str:
        """Return the floor of a task in words; empty if each model has one run."""
        runs = " and ".join(str(len(each.runs)) for each in pair)
        if (floor := self.floor(pair)) is None:
            equal = any(len(each.runs) > 1 for each in pair)
            return f"{pair[0].task}: {runs} runs; those of one model are equal." if equal else ""
        return (
            f"{pair[0].task}: {runs} runs; a model compared with itself differs by up to "
            f"{floor(1.0 - ALPHA / max(self.tests, 1)):.3f} from run to run, which the interval includes."
        )


def _spread(pair: Pair) -> tuple[int, float, float]:
    """Return ν and φ of a task, and the variance of its difference at φ = 1; φ is 0 without noise."""
    freedom = sum(len(each.runs) - 1 for each in pair)
    within = sum(len(each.runs) * float(each.runs.var(axis=0).mean()) for each in pair)
    if not freedom or not within:
        return freedom, 0.0, 0.0
    between = sum(each.runs.size * float(each.runs.mean(axis=1).var()) for each in pair)
    n = sum(each.runs.shape[1] for each in pair) / 2
    return (
        freedom,
        between / within,
        within / freedom / n * sum(1 / len(each.runs) for each in pair),
    )
