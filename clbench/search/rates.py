"""Learning rates by depth: their space, trials of them, and how trials combine."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from clbench.core.errors import ArgumentError, DataError, SettingsError, count, named
from clbench.core.files import read_file
from clbench.core.options import checks_arguments
from clbench.models.groups import Division, divide_layers
from clbench.suite.baselines import Baseline, Cost, Range, Sweep

BASE = 1.8
"""b of Kenneweg et al. 2022, section 3.2: each rank weighs b times less than the one above."""
SCORES, RATES = 3, 10
"""How many numbers a trial has in a log of the authors' code."""
LOWEST, HIGHEST = 1e-7, 1e-3
"""Range of each rate in the paper."""


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

    def baseline_text(
        self,
        rates: Sequence[float],
        description: str,
        source: str,
        rule: str,
        cost: Cost | None = None,
    ) -> str:
        """Return the content of a baseline file of the method ``layerwise`` with these `rates`.

        The file holds them as multiples of the flat rate, so that it can be used with another one.
        `source` says where the rates come from, `rule` where depth and division do.
        """
        sources = {
            "multiples": f"{source} Over the flat rate {self.flat:g}.",
            "depth": rule,
            "division": rule,
        }
        multiples = [rate / self.flat for rate in rates]
        settings = {"multiples": multiples, "depth": self.depth, "division": self.division}
        baseline = Baseline("", "layerwise", settings, sources, description, cost=cost)
        names = self.group_names(len(rates))
        lines = [f"  {m!r},  # {name}\n" for m, name in zip(multiples, names, strict=True)]
        return baseline.to_toml().replace(json.dumps(multiples), f"[\n{''.join(lines)}]")


@dataclass(frozen=True)
class SearchSpace:
    """One log-uniform learning rate for each group of layers, embeddings and head included.

    Raises a SettingsError if the number of groups does not fit the model, the range is not within
    (0, 1], or the flat rate is outside the range.
    """

    origin: SearchOrigin
    groups: int
    lowest: float = LOWEST
    highest: float = HIGHEST

    def __post_init__(self) -> None:
        most = self.origin.depth + 2
        if not 3 <= self.groups <= most:
            raise SettingsError(
                f"{named('groups', self.groups)}: must be from 3 to {most}, as the model has "
                f"{self.origin.depth} layers, embeddings and a head."
            )
        if not 0.0 < self.lowest < self.highest <= 1.0:
            raise SettingsError(
                f"{named('lowest', self.lowest)}, {named('highest', self.highest)}: must be above "
                f"0 and at most 1, and {named('lowest')} the smaller one."
            )
        if not self.lowest <= self.origin.flat <= self.highest:
            raise SettingsError(
                f"the flat rate {self.origin.flat:g} of the first trial lies outside "
                f"{named('lowest', self.lowest)} to {named('highest', self.highest)}. Widen the "
                "range, or change the suite's lr."
            )

    @property
    def names(self) -> list[str]:
        """Names of the groups, from the embeddings to the head."""
        return self.origin.group_names(self.groups)

    @property
    def sweep(self) -> Sweep:
        """The range of each rate, by its key in the points that a searcher suggests."""
        axis = Range(low=self.lowest, high=self.highest)
        return {f"rate{number}": axis for number in range(self.groups)}

    @property
    def flat(self) -> list[float]:
        """The flat rate for every group."""
        return [self.origin.flat] * self.groups

    def point(self, rates: Sequence[float]) -> dict[str, float]:
        """Return `rates` as a point that a searcher suggests."""
        return dict(zip(self.sweep, rates, strict=True))

    def rates(self, point: Mapping[str, Any]) -> list[float]:
        """Return the rates of a point."""
        return [float(point[key]) for key in self.sweep]


@checks_arguments
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
    ArgumentError
        If there are fewer than three rates, a rate is not in (0, 1], or a score not in [-1, 1].
    """

    rates: Sequence[float]
    p_o: float
    p_s: float
    p_o_before: float | None = None

    def __post_init__(self) -> None:
        if len(self.rates) < 3:
            raise ArgumentError(f"{len(self.rates)} rates: there must be three or more")
        for number, rate in enumerate(self.rates, 1):
            if not 0.0 < rate <= 1.0:
                raise ArgumentError(f"rate {number} is {rate:g}: must be above 0, and at most 1")
        for name in ("p_o_before", "p_s", "p_o"):
            score = getattr(self, name)
            if score is not None and not -1.0 <= score <= 1.0:
                raise ArgumentError(f"{name} is {score:g}: must be a fraction, such as 0.9")

    @property
    def p(self) -> float:
        """p_o + p_s, which ranks the trials of a pair."""
        return self.p_o + self.p_s


@dataclass(frozen=True)
class Combination:
    """A combined distribution."""

    rates: tuple[float, ...]  # geometric mean over the pairs, from the embeddings to the head
    within: tuple[tuple[float, ...], ...]  # weighted mean of each pair


@checks_arguments
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
    ArgumentError
        If there is no pair or a pair has no trial, trials differ in their number of rates, or
        `b` is below 1.
    """
    if not 1.0 <= b < math.inf:
        raise ArgumentError(f"b is {b:g}: must be a finite number, 1 or more")
    if not pairs or not all(pairs):
        raise ArgumentError("there must be at least one pair, and at least one trial in each")
    numbers = sorted({len(trial.rates) for trials in pairs for trial in trials})
    if len(numbers) > 1:
        few, *_, many = numbers
        raise ArgumentError(f"trials have {few} and {many} rates: all must have the same number")
    ranked = [sorted(trials, key=lambda trial: -trial.p) for trials in pairs]
    weights = [math.exp(-math.log(b) * rank) for rank in range(max(map(len, ranked)))]
    within = tuple(
        _geometric_mean([trial.rates for trial in trials], weights[: len(trials)])
        for trials in ranked
    )
    return Combination(_geometric_mean(within), within)


@checks_arguments
def read_log(path: str | Path) -> list[Trial]:
    """Read a trial log of the authors' code.

    A line holds comma-separated numbers, 13 for each trial: the score on D_o before the shift,
    the score on D_s, the score on D_o after it, and ten rates from the embeddings to the head.

    Raises
    ------
    DataError
        If the file is unreadable, or a number is missing or wrong; names the line and trial.
    """
    try:
        lines = read_file(Path(path)).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise DataError(f"{path} cannot be read as a trial log: {reason}.") from error
    trials: list[Trial] = []
    size = SCORES + RATES
    for number, line in enumerate(lines, 1):
        fields = line.strip().rstrip(",").split(",") if line.strip() else []
        if len(fields) % size:
            raise DataError(
                f"{path}, line {number}: has {count(len(fields), 'number')}, which is not a "
                f"multiple of {size} ({SCORES} scores and {RATES} rates for each trial)."
            )
        for start in range(0, len(fields), size):
            try:
                p_o_before, p_s, p_o, *rates = map(float, fields[start : start + size])
                trials.append(Trial(tuple(rates), p_o, p_s, p_o_before))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number}, trial {len(trials) + 1}: {error}."
                ) from error
    if not trials:
        raise DataError(f"{path} is empty. A trial log has {size} numbers for each trial.")
    return trials


def _geometric_mean(
    rows: Sequence[Sequence[float]], weights: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Return the weighted geometric mean of each column."""
    columns = zip(*rows, strict=True)
    return tuple(math.exp(fmean(map(math.log, column), weights)) for column in columns)
