"""Asynchronous successive halving: when a trial is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clbench.errors import SettingsError


@dataclass(frozen=True)
class Halving:
    """Settings of ASHA; the defaults are those of Kenneweg et al. 2022 (authors' code).

    After `grace`, grace·reduction, grace·reduction² … epochs a trial goes on only if its reward
    is among the best 1/`reduction` of those that came so far (Li et al. 2020, algorithm 2; one
    bracket).

    Attributes
    ----------
    grace
        Epochs that every trial gets.
    reduction
        Above 1.

    Raises
    ------
    SettingsError
        If a number is out of range.
    """

    grace: int = 1
    reduction: float = 2.0

    def __post_init__(self) -> None:
        if self.grace < 1:
            raise SettingsError(f"--grace {self.grace}: must be 1 or more.")
        if not 1.0 < self.reduction < 1e6:
            raise SettingsError(f"--reduction {self.reduction:g}: must be above 1.")

    def milestones(self, epochs: int) -> list[int]:
        """Epochs after which a trial of so many may be stopped; the last one is none."""
        found, next_one = [], float(self.grace)
        while next_one < epochs:
            found.append(int(next_one) if next_one == int(next_one) else int(next_one) + 1)
            next_one *= self.reduction
        return list(dict.fromkeys(m for m in found if m < epochs))

    def cutoff(self, rewards: Sequence[float]) -> float:
        """The reward that the next trial must reach, by those of the trials before it."""
        return float(np.percentile(rewards, 100.0 * (1.0 - 1.0 / self.reduction)))
