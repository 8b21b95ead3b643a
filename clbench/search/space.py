"""What is searched: a learning rate for each group of a model's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clbench.errors import SettingsError
from clbench.search.baseline import FoundOn

MOST_GROUPS = 10
"""Groups of Kenneweg et al. 2022, section 3.1: embeddings, eight of layers, head."""

LOWEST, HIGHEST = 1e-7, 1e-3
"""Range of each rate there."""


@dataclass(frozen=True)
class Space:
    """Rates from `lowest` to `highest`, log-uniform, one a group.

    Attributes
    ----------
    found
        Flat rate, depth of the model, and how its layers are grouped.
    groups
        Number of rates, embeddings and head included.
    lowest, highest
        Of each rate.

    Raises
    ------
    SettingsError
        If there are fewer than three groups or more than the model has parts, or the flat rate
        is not in the range.
    """

    found: FoundOn
    groups: int
    lowest: float = LOWEST
    highest: float = HIGHEST

    def __post_init__(self) -> None:
        most = self.found.depth + 2
        if not 3 <= self.groups <= most:
            raise SettingsError(
                f"--groups {self.groups}: must be from 3 to {most}; the model has "
                f"{self.found.depth} layers, besides embeddings and head."
            )
        if not 0.0 < self.lowest < self.highest <= 1.0:
            raise SettingsError(
                f"--lowest {self.lowest:g}, --highest {self.highest:g}: must be above 0, at most "
                "1, and in this order."
            )
        if not self.lowest <= self.found.flat <= self.highest:
            raise SettingsError(
                f"the flat rate {self.found.flat:g}, which the first trial has, lies outside "
                f"--lowest {self.lowest:g} to --highest {self.highest:g}. Widen the range, or "
                "change the suite's lr."
            )

    @property
    def names(self) -> list[str]:
        """Of the groups, for people."""
        return self.found.groups(self.groups)

    @property
    def keys(self) -> list[str]:
        """Of the groups, in configurations of trials."""
        return [f"rate{number}" for number in range(self.groups)]

    @property
    def flat(self) -> list[float]:
        """The flat rate for every group: the first trial."""
        return [self.found.flat] * self.groups

    def config(self, rates: list[float]) -> dict[str, float]:
        """Rates as the configuration of a trial."""
        return dict(zip(self.keys, rates, strict=True))

    def rates(self, config: dict[str, Any]) -> list[float]:
        """The rates in the configuration of a trial."""
        return [float(config[key]) for key in self.keys]


def usual_groups(depth: int) -> int:
    """Ten, or one a layer besides embeddings and head where the model has fewer than eight."""
    return min(MOST_GROUPS, depth + 2)
