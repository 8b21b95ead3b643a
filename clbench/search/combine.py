"""From the trials of several pairs to one distribution of learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clbench.search.trial import Trial

BASE = 1.8
"""b of Kenneweg et al. 2022, section 3.2: a rank further down counts so many times less."""


@dataclass(frozen=True)
class Combination:
    """A combined distribution.

    Attributes
    ----------
    rates
        The geometric mean over the pairs, from the embeddings to the head.
    within
        The weighted mean of each pair, in the order given.
    best
        Each pair's best trial.
    """

    rates: tuple[float, ...]
    within: tuple[tuple[float, ...], ...]
    best: tuple[Trial, ...]


def combine(pairs: Sequence[Sequence[Trial]], b: float = BASE) -> Combination:
    """Combine the trials of one or more pairs (Kenneweg et al. 2022, section 3.2).

    Within a pair the trials are ranked by p = p_o + p_s, the best being rank 0, and averaged
    geometrically with the weights b^(−rank), rate by rate; of equal p the earlier trial ranks
    first. Across pairs the mean is the plain geometric one. Means are taken of logarithms,
    so nothing overflows.

    Parameters
    ----------
    pairs
        For each pair of tasks its trials.
    b
        At 1 all trials of a pair count alike; the larger, the more the best one counts.

    Raises
    ------
    ValueError
        If there is no pair or no trial in one, trials differ in the number of their rates, or
        `b` is below 1.
    """
    if not 1.0 <= b < math.inf:
        raise ValueError(f"b is {b:g}: must be 1 or more")
    if not pairs or not all(pairs):
        raise ValueError("there must be at least one pair, and at least one trial in each")
    counts = sorted({len(trial.rates) for trials in pairs for trial in trials})
    if len(counts) > 1:
        raise ValueError(
            f"trials have {counts[0]} and {counts[-1]} rates: they must have equally many"
        )
    ranked = [sorted(trials, key=lambda trial: -trial.p) for trials in pairs]
    within = [
        _mean([t.rates for t in trials], [-math.log(b) * r for r in range(len(trials))])
        for trials in ranked
    ]
    across = _mean(within, [0.0] * len(within))
    return Combination(across, tuple(within), tuple(trials[0] for trials in ranked))


def _mean(rows: Sequence[Sequence[float]], log_weights: Sequence[float]) -> tuple[float, ...]:
    """Geometric means of columns; the largest log weight must be 0."""
    weights = [math.exp(weight) for weight in log_weights]
    total = math.fsum(weights)
    return tuple(
        math.exp(math.fsum(w * math.log(x) for w, x in zip(weights, column, strict=True)) / total)
        for column in zip(*rows, strict=True)
    )
