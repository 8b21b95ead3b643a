"""One trial of a search, as far as combining looks at it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """Learning rates, and the scores that training a pair with them gave.

    Attributes
    ----------
    rates
        From the embeddings through the groups of layers to the head; each above 0.
    p_o, p_s
        Scores on D_o and on D_s after training on both; fractions.
    p_o_before
        Score on D_o before the shift, if it is known.

    Raises
    ------
    ValueError
        If there are fewer than three rates, one is not above 0 and finite, or a score is no
        fraction between -1 and 1.
    """

    rates: tuple[float, ...]
    p_o: float
    p_s: float
    p_o_before: float | None = None

    def __post_init__(self) -> None:
        if len(self.rates) < 3:
            raise ValueError(f"{len(self.rates)} rates: there must be three or more")
        for number, rate in enumerate(self.rates, 1):
            if not 0.0 < rate < math.inf:
                raise ValueError(f"rate {number} is {rate:g}: must be above 0")
        scores = {"p_o_before": self.p_o_before, "p_s": self.p_s, "p_o": self.p_o}
        for name, score in scores.items():
            if score is not None and not -1.0 <= score <= 1.0:
                raise ValueError(f"{name} is {score:g}: must be a fraction, such as 0.9")

    @property
    def p(self) -> float:
        """p_o + p_s, which ranks the trials of a pair."""
        return self.p_o + self.p_s
