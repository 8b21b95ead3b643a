"""Combine the trials of several pairs of tasks into one distribution of learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BASE = 1.8
"""b of Kenneweg et al. 2022, section 3.2: each rank weighs b times less than the one above."""


@dataclass(frozen=True)
class Trial:
    """Learning rates, and the scores of a pair of tasks that were trained with them.

    Attributes
    ----------
    rates
        From the embeddings through the groups of layers to the head; each in (0, 1].
    p_o, p_s
        Scores on D_o and on D_s after training on both; fractions.
    p_o_before
        Score on D_o before the shift, or None.

    Raises
    ------
    ValueError
        If there are fewer than three rates, a rate is not in (0, 1], or a score not in [-1, 1].
    """

    rates: tuple[float, ...]
    p_o: float
    p_s: float
    p_o_before: float | None = None

    def __post_init__(self) -> None:
        if len(self.rates) < 3:
            raise ValueError(f"{len(self.rates)} rates: there must be three or more")
        for number, rate in enumerate(self.rates, 1):
            if not 0.0 < rate <= 1.0:
                raise ValueError(f"rate {number} is {rate:g}: must be above 0, and at most 1")
        for name in ("p_o_before", "p_s", "p_o"):
            score = getattr(self, name)
            if score is not None and not -1.0 <= score <= 1.0:
                raise ValueError(f"{name} is {score:g}: must be a fraction, such as 0.9")

    @property
    def p(self) -> float:
        """p_o + p_s, which ranks the trials of a pair."""
        return self.p_o + self.p_s


@dataclass(frozen=True)
class Combination:
    """A combined distribution."""

    rates: tuple[float, ...]  # geometric mean over the pairs, from the embeddings to the head
    within: tuple[tuple[float, ...], ...]  # weighted mean of each pair
    best: tuple[Trial, ...]  # best trial of each pair


def combine(pairs: Sequence[Sequence[Trial]], b: float = BASE) -> Combination:
    """Combine the trials of one or more pairs (Kenneweg et al. 2022, section 3.2).

    Within a pair the trials are ranked by p = p_o + p_s, best first with rank 0, and each rate
    is averaged geometrically with weights b^(−rank); of equal p the earlier trial ranks first.
    Across pairs, each rate is the plain geometric mean.

    Parameters
    ----------
    pairs
        The trials of each pair of tasks.
    b
        1 gives all trials of a pair equal weight; larger values favour the best ones.

    Raises
    ------
    ValueError
        If there is no pair or a pair has no trial, trials differ in their number of rates, or
        `b` is below 1.
    """
    if not 1.0 <= b < math.inf:
        raise ValueError(f"b is {b:g}: must be a finite number, 1 or more")
    if not pairs or not all(pairs):
        raise ValueError("there must be at least one pair, and at least one trial in each")
    numbers = sorted({len(trial.rates) for trials in pairs for trial in trials})
    if len(numbers) > 1:
        few, *_, many = numbers
        raise ValueError(f"trials have {few} and {many} rates: all must have the same number")
    ranked = [sorted(trials, key=lambda trial: -trial.p) for trials in pairs]
    within = [
        _geometric_mean([t.rates for t in trials], [-math.log(b) * r for r in range(len(trials))])
        for trials in ranked
    ]
    rates = _geometric_mean(within, [0.0] * len(within))
    return Combination(rates, tuple(within), tuple(trials[0] for trials in ranked))


def _geometric_mean(
    rows: Sequence[Sequence[float]], log_weights: Sequence[float]
) -> tuple[float, ...]:
    """Return the weighted geometric mean of each column; logarithms avoid overflow."""
    weights = [math.exp(weight) for weight in log_weights]
    total = math.fsum(weights)
    return tuple(
        math.exp(math.fsum(w * math.log(x) for w, x in zip(weights, column, strict=True)) / total)
        for column in zip(*rows, strict=True)
    )
