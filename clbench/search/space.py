"""The search space, learning rates and their ranges, and the settings of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from clbench.core.errors import SettingsError
from clbench.models.groups import Division, divide_layers

MAX_GROUPS = 10
"""Groups of Kenneweg et al. 2022, section 3.1: embeddings, eight of layers, head."""

LOWEST, HIGHEST = 1e-7, 1e-3
"""Range of each rate in the paper."""

Searcher = Literal["bayes", "random"]
Scheduler = Literal["asha", "none"]


@dataclass(frozen=True)
class SearchOrigin:
    """The flat rate and model of a search; defaults of Kenneweg et al. 2022: BERT base, 2e-5."""

    flat: float = 2e-5  # baseline files store rates as multiples of it
    depth: int = 12  # number of layers of the model
    division: Division = "code"  # how `divide_layers` groups them

    def group_names(self, count: int) -> list[str]:
        """Return a name for each of `count` groups, from the embeddings to the head."""
        names = []
        for layers in divide_layers(self.depth, count - 2, self.division):
            numbers = ", ".join(map(str, layers))
            names.append(f"layer{'s' * (len(layers) > 1)} {numbers}" if layers else "no layer")
        return ["embeddings", *names, "head"]


@dataclass(frozen=True)
class SearchSpace:
    """One log-uniform learning rate for each group of layers, embeddings and head included.

    Raises
    ------
    SettingsError
        If the number of groups does not fit the model, the range is not within (0, 1], or the
        flat rate is outside the range.
    """

    origin: SearchOrigin
    groups: int
    lowest: float = LOWEST
    highest: float = HIGHEST

    def __post_init__(self) -> None:
        most = self.origin.depth + 2
        if not 3 <= self.groups <= most:
            raise SettingsError(
                f"--groups {self.groups}: must be from 3 to {most}, as the model has "
                f"{self.origin.depth} layers, embeddings and a head."
            )
        if not 0.0 < self.lowest < self.highest <= 1.0:
            raise SettingsError(
                f"--lowest {self.lowest:g}, --highest {self.highest:g}: must be above 0 and at "
                "most 1, and --lowest the smaller one."
            )
        if not self.lowest <= self.origin.flat <= self.highest:
            raise SettingsError(
                f"the flat rate {self.origin.flat:g} of the first trial lies outside --lowest "
                f"{self.lowest:g} to --highest {self.highest:g}. Widen the range, or change the "
                "suite's lr."
            )

    @property
    def names(self) -> list[str]:
        """Names of the groups, from the embeddings to the head."""
        return self.origin.group_names(self.groups)

    @property
    def keys(self) -> list[str]:
        """Keys of the rates in the configuration of a Ray Tune trial."""
        return [f"rate{number}" for number in range(self.groups)]

    @property
    def flat(self) -> list[float]:
        """The flat rate for every group."""
        return [self.origin.flat] * self.groups

    def config(self, rates: Sequence[float]) -> dict[str, float]:
        """Return `rates` as the configuration of a Ray Tune trial."""
        return dict(zip(self.keys, rates, strict=True))

    def rates(self, config: Mapping[str, Any]) -> list[float]:
        """Return the rates in the configuration of a Ray Tune trial."""
        return [float(config[key]) for key in self.keys]


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search, by default those of Kenneweg et al. 2022 (section 4 and code).

    Attributes
    ----------
    trials
        Total number of finished trials, earlier sessions included.
    searcher
        ``bayes`` (tree-structured Parzen estimators) or ``random``.
    scheduler
        ``asha`` stops weak trials early by asynchronous successive halving (Li et al. 2020,
        algorithm 2, one bracket); ``none`` trains every trial to the end.
    grace, reduction
        After `grace`, grace·reduction, grace·reduction² … epochs on D_s, ``asha`` continues a
        trial only if its reward is among the best 1/`reduction` so far.
    groups
        Number of rates, embeddings and head included; None means ten, or layers + 2 if that is
        fewer.
    division
        How layers are grouped; see `clbench.models.groups.divide_layers`.
    lowest, highest
        Range of each rate.
    seed
        Seed of the searcher and of training.
    paper_split
        Reward trials on the reported split, as the authors' code does, instead of held-out
        training rows. The resulting scores are optimistic.
    time_limit
        Seconds after which the search ends, interrupting running trials; None means no limit.

    Raises
    ------
    SettingsError
        If a value is out of range.
    """

    trials: int = 50
    searcher: Searcher = "bayes"
    scheduler: Scheduler = "asha"
    grace: int = 1
    reduction: float = 2.0
    groups: int | None = None
    division: Division = "code"
    lowest: float = LOWEST
    highest: float = HIGHEST
    seed: int = 0
    paper_split: bool = False
    time_limit: float | None = None

    def __post_init__(self) -> None:
        rules = {
            "searcher": (self.searcher in ("bayes", "random"), "bayes or random"),
            "scheduler": (self.scheduler in ("asha", "none"), "asha or none"),
            "trials": (self.trials >= 1, "1 or more"),
            "grace": (self.grace >= 1, "1 or more"),
            "reduction": (1.0 < self.reduction < 1e6, "above 1 and below 1e6"),
            "seed": (0 <= self.seed < 2**32, "from 0 to 4294967295"),
            "time_limit": (self.time_limit is None or self.time_limit > 0, "above 0 seconds"),
        }
        for name, (valid, rule) in rules.items():
            if not valid:
                option = f"--{name.replace('_', '-')}"
                raise SettingsError(f"{option} {getattr(self, name)!r}: must be {rule}.")

    def recipe(self, space: SearchSpace, split: str) -> dict[str, Any]:
        """Return everything that decides which rates are tried, as plain JSON values."""
        # Before it had a task, halving counted the epochs of both.
        halving = {"grace": self.grace, "reduction": self.reduction, "task": "D_s"}
        return {
            **asdict(space.origin),
            "groups": space.groups,
            "lowest": space.lowest,
            "highest": space.highest,
            "searcher": self.searcher,
            "scheduler": self.scheduler,
            "halving": halving if self.scheduler == "asha" else None,
            "split": split,
        }
