"""One baseline under tuning: its proposals, its trials, and the best of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clbench.errors import SearchError, SettingsError, join_names
from clbench.search.search_folder import FAILED
from clbench.search.space import Searcher
from clbench.seeds import stream_seed
from clbench.suite.baselines import Baseline, Cost
from clbench.suite.sweep import Range, Sweep, axes, variant

if TYPE_CHECKING:
    from clbench.results.cell import CellResult

TUNING_SEEDS = (1000, 1001)
"""Default seeds of the trials: none that a suite of clbench reports."""
ROUNDS = 4
"""Rounds into which the trials are divided; the searcher sees the scores of the rounds before."""
TRIES = 50
"""Suggestions for each new proposal, as a searcher may suggest a point again."""


@dataclass(frozen=True)
class TuneSettings:
    """How to tune.

    Attributes
    ----------
    trials
        Trials of each method, the first one with the settings of its baseline.
    minutes
        Training time after which a method gets no further round of trials; None means no limit.
    seeds
        Seeds of the cells of each trial; the suite must not report them.
    searcher
        ``bayes`` (tree-structured Parzen estimators) or ``random``.
    keep_rate
        Whether to leave out the flat rate, which is otherwise part of every sweep.

    Raises
    ------
    SettingsError
        If a value is out of range.
    """

    trials: int = 20
    minutes: float | None = None
    seeds: tuple[int, ...] = TUNING_SEEDS
    searcher: Searcher = "bayes"
    keep_rate: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.trials <= 10_000:
            raise SettingsError(f"--trials {self.trials}: must be from 1 to 10000.")
        if self.minutes is not None and not 0.0 < self.minutes < math.inf:
            raise SettingsError(f"--minutes {self.minutes:g}: must be above 0.")
        if self.searcher not in ("bayes", "random"):
            raise SettingsError(f"--searcher {self.searcher!r}: must be bayes or random.")


@dataclass(frozen=True)
class TunedTrial:
    """A trial whose cells are all finished.

    Attributes
    ----------
    number, settings
        Number from 1; the settings that it changes.
    score
        Mean score over tasks, scenarios and seeds after the last stage; `FAILED` if a cell failed.
    p_o, p_s
        Mean scores on the old and on the new task; NaN for a failed trial.
    epochs, seconds
        Passes over the rows of a task, and seconds of training and scoring, of all its cells.
    """

    number: int
    settings: Mapping[str, Any]
    score: float
    p_o: float
    p_s: float
    epochs: float
    seconds: float


@dataclass
class Study:
    """The trials of one baseline: settings proposed so far, and the finished trials."""

    baseline: Baseline
    proposals: list[dict[str, Any]] = field(default_factory=list)
    is_exhausted: bool = False  # every point of the sweep has been proposed
    trials: list[TunedTrial] = field(default_factory=list)

    def variants(self) -> list[Baseline]:
        """Return the baseline of each proposal, the first one under its own name."""
        name = self.baseline.name
        return [
            variant(self.baseline, f"{name}-t{number}" if number > 1 else name, settings)
            for number, settings in enumerate(self.proposals, 1)
        ]

    def read(self, cells: Mapping[str, list[CellResult]], count: int) -> None:
        """Take the trials that have `count` cells, given by the name of their variant."""
        self.trials = [
            _trial(number, self.proposals[number - 1], cells[point.name])
            for number, point in enumerate(self.variants(), 1)
            if len(cells.get(point.name, [])) == count
        ]

    def propose(self, count: int, settings: TuneSettings) -> None:
        """Add `count` new proposals, the first one with the settings of the baseline.

        There are fewer if the sweep has no more points.
        """
        if not self.proposals:
            self.proposals.append({})
            count -= 1
        if not axes(self.baseline, keep_rate=settings.keep_rate):
            self.is_exhausted = True
            return
        searcher = _searcher(self, settings)
        seen = [self.values_of(proposal) for proposal in self.proposals]
        for number in range(TRIES * count):
            if count == 0:
                break
            point = searcher.suggest(f"new{number}")
            proposal = {key: _rounded(value) for key, value in point.items()}
            if self.values_of(proposal) not in seen:
                self.proposals.append(proposal)
                seen.append(self.values_of(proposal))
                count -= 1
        self.is_exhausted = count > 0

    def values_of(self, proposal: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of a proposal that its baseline file would hold."""
        return {"lr_multiple": 1.0, **self.baseline.settings, **proposal}

    def best(self) -> TunedTrial:
        """Return the trial with the highest score, the earlier one if tied.

        Raises a SearchError if there is none, or all have failed.
        """
        best = max(self.trials, key=lambda trial: trial.score, default=None)
        if best is None or best.score == FAILED:
            raise SearchError(
                f"{self.baseline.name}: none of its {len(self.trials)} trials succeeded."
            )
        return best

    def cost(self) -> Cost:
        """Return the cost of all trials."""
        return Cost(
            trials=len(self.trials),
            epochs=round(sum(trial.epochs for trial in self.trials), 4),
            seconds=round(sum(trial.seconds for trial in self.trials), 3),
        )

    def tuned(self, command: str, scenarios: Sequence[str], seeds: Sequence[int]) -> Baseline:
        """Return the baseline with the settings of the best trial, and their source and cost.

        The source names the `command`, scenarios and seeds of the trials.
        """
        best, first = self.best(), self.trials[0]
        before = "failed" if first.score == FAILED else f"{first.score:.4f}"
        source = (
            f"Tuned: the best of {len(self.trials)} trials of {command} on "
            f"{join_names(scenarios)}, tuning rows, seeds {join_names(map(str, seeds))}: "
            f"mean score {best.score:.4f} ({before} before)."
        )
        tuned = variant(self.baseline, self.baseline.name, best.settings)
        sources = {**tuned.sources, **dict.fromkeys(best.settings, source)}
        return replace(tuned, sources=sources, cost=self.cost(), family="")


def _trial(number: int, settings: Mapping[str, Any], cells: Sequence[CellResult]) -> TunedTrial:
    good = [cell for cell in cells if cell.status == "ok"]
    stages = [stage for cell in good for stage in cell.stages]
    last = [[score for score in cell.R[-1] if score is not None] for cell in good]
    is_whole = len(good) == len(cells)
    return TunedTrial(
        number=number,
        settings=settings,
        score=fmean(fmean(row) for row in last) if is_whole else FAILED,
        p_o=fmean(row[0] for row in last) if is_whole else math.nan,
        p_s=fmean(row[-1] for row in last) if is_whole else math.nan,
        epochs=sum(stage.epochs for stage in stages),
        seconds=sum(stage.train_seconds + stage.eval_seconds for stage in stages),
    )


def _searcher(study: Study, settings: TuneSettings) -> Any:
    """Return a searcher that knows the finished trials within the sweep."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray import tune
        from ray.tune.search.hyperopt import HyperOptSearch

    swept = axes(study.baseline, keep_rate=settings.keep_rate)
    space: dict[str, Any] = {}
    for key, axis in swept.items():
        if not isinstance(axis, Range):
            space[key] = tune.choice(axis)
        elif isinstance(axis.low, int) and isinstance(axis.high, int):
            kind = tune.lograndint if axis.scale == "log" else tune.randint
            space[key] = kind(axis.low, axis.high + 1)
        else:
            space[key] = (tune.loguniform if axis.scale == "log" else tune.uniform)(
                axis.low, axis.high
            )
    past = [
        (point, trial.score) for trial in study.trials if (point := _point(study, trial, swept))
    ]
    searcher = HyperOptSearch(
        points_to_evaluate=[point for point, _ in past] or None,
        n_initial_points=10**9 if settings.searcher == "random" else -(-settings.trials // ROUNDS),
        random_state_seed=stream_seed("tune", study.baseline.name, len(study.proposals)) % 2**32,
    )
    searcher.set_search_properties("score", "max", space)
    for number, (_, score) in enumerate(past):
        searcher.suggest(f"past{number}")
        searcher.on_trial_complete(f"past{number}", {"score": score})
    return searcher


def _point(study: Study, trial: TunedTrial, swept: Sweep) -> dict[str, Any] | None:
    """Return a trial as a point of the space, or None if it lies outside, as defaults may."""
    values = study.values_of(trial.settings)
    point: dict[str, Any] = {}
    for key, axis in swept.items():
        value = values.get(key)
        inside = value is not None and (
            axis.low <= value <= axis.high if isinstance(axis, Range) else value in axis
        )
        if not inside:
            return None
        point[key] = value
    return point


def _rounded(value: Any) -> Any:
    """Return a proposed value as JSON holds it, floats with three digits."""
    value = value.item() if hasattr(value, "item") else value
    return float(f"{value:.3g}") if isinstance(value, float) else value
