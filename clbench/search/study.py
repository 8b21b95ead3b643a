"""One baseline under tuning: its proposals, its trials, and the best of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clbench.core.errors import SearchError, SettingsError, SuiteError, count, join_names
from clbench.core.seeds import stream_seed
from clbench.search.search_folder import FAILED
from clbench.search.space import Searcher
from clbench.suite.baselines import Baseline, Cost, Range, Sweep
from clbench.suite.sweep import axes, count_points, own_values, variant
from clbench.suite.validation import check_methods

if TYPE_CHECKING:
    from clbench.results.cell import CellResult
    from clbench.training.protocol import Protocol

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
            raise SettingsError(f"--minutes {self.minutes:g}: must be a number above 0.")
        if self.searcher not in ("bayes", "random"):
            raise SettingsError(f"--searcher {self.searcher!r}: must be bayes or random.")

    def words(self) -> tuple[str, ...]:
        """Return the options of ``clbench tune`` for these settings, without the seeds."""
        words = ["--trials", str(self.trials)]
        words += [] if self.minutes is None else ["--minutes", f"{self.minutes:g}"]
        words += [] if self.searcher == "bayes" else ["--searcher", self.searcher]
        return *words, *(["--keep-rate"] if self.keep_rate else [])


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
        Mean scores on the old task, if there is one, and on the new task; NaN for a failed trial.
    seconds
        Time of its cells.
    """

    number: int
    settings: Mapping[str, Any]
    score: float
    p_o: float
    p_s: float
    seconds: float


@dataclass
class Study:
    """The trials of one baseline: settings proposed so far, and the finished trials.

    Attributes
    ----------
    baseline, settings, protocol
        What to tune, how, and with which protocol; points that do not fit it are left out.
    proposals
        Changed settings by trial, also of trials beyond those that the settings ask for.
    is_exhausted
        Whether every point of the sweep has been proposed.
    trials, cells
        Finished trials, at most as many as the settings ask for; the cells of all proposals, those
        of other scenarios and seeds included.
    """

    baseline: Baseline
    settings: TuneSettings
    protocol: Protocol
    proposals: list[dict[str, Any]] = field(default_factory=list)
    is_exhausted: bool = False
    trials: list[TunedTrial] = field(default_factory=list)
    cells: list[CellResult] = field(default_factory=list)

    @property
    def has_result(self) -> bool:
        """Whether a trial has succeeded."""
        return any(trial.score != FAILED for trial in self.trials)

    @property
    def failures(self) -> int:
        """How many of the trials have failed."""
        return sum(trial.score == FAILED for trial in self.trials)

    def variants(self) -> list[Baseline]:
        """Return the baseline of each proposal, the first one under its own name."""
        name = self.baseline.name
        return [
            variant(self.baseline, f"{name}-t{number}" if number > 1 else name, settings)
            for number, settings in enumerate(self.proposals, 1)
        ]

    def read(self, by_name: Mapping[str, list[CellResult]], scenarios: Sequence[str]) -> None:
        """Take the trials whose cells in all scenarios are finished, from cells by variant."""
        names = [point.name for point in self.variants()]
        self.cells = [cell for name in names for cell in by_name.get(name, [])]
        by_trial: dict[str, list[CellResult]] = {}
        for cell in self.trial_cells(scenarios):
            by_trial.setdefault(cell.baseline, []).append(cell)
        size = len(scenarios) * len(self.settings.seeds)
        self.trials = [
            _trial(number, self.proposals[number - 1], by_trial[name])
            for number, name in enumerate(names, 1)
            if len(by_trial.get(name, [])) == size
        ]

    def trial_cells(self, scenarios: Sequence[str]) -> list[CellResult]:
        """Return the cells of the trials and seeds that the settings ask for."""
        names = {point.name for point in self.variants()[: self.settings.trials]}
        return [
            cell
            for cell in self.cells
            if cell.baseline in names
            and cell.scenario in scenarios
            and cell.seed in self.settings.seeds
        ]

    def propose(self, number: int) -> None:
        """Add `number` new proposals, the first one with the settings of the baseline.

        There are fewer if the sweep has no more points.
        """
        if not self.proposals:
            self.proposals.append({})
            number -= 1
        keep_rate = self.settings.keep_rate
        left = count_points(self.baseline, keep_rate=keep_rate) - len(self.proposals)
        self.is_exhausted = left < number
        number = int(min(number, left))
        if number <= 0:
            return
        swept = axes(self.baseline, keep_rate=keep_rate)
        searcher = _searcher(self, swept)
        seen = [own_values(self.baseline, proposal) for proposal in self.proposals]
        for attempt in range(TRIES * number):
            if number == 0:
                break
            point = searcher.suggest(f"new{attempt}")
            proposal = {key: _plain(value, swept[key]) for key, value in point.items()}
            values = own_values(self.baseline, proposal)
            if values in seen:
                continue
            seen.append(values)
            with suppress(SettingsError, SuiteError):
                check_methods([variant(self.baseline, self.baseline.name, proposal)], self.protocol)
                self.proposals.append(proposal)
                number -= 1
        self.is_exhausted = self.is_exhausted or number > 0

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
        """Return the cost of all cells, those of other scenarios and seeds included."""
        epochs, seconds = _cost(self.cells)
        return Cost(
            trials=len({cell.baseline for cell in self.cells}),
            epochs=round(epochs, 4),
            seconds=round(seconds, 3),
            seeds=tuple(sorted({cell.seed for cell in self.cells})),
        )

    def tuned(self, command: str, scenarios: Sequence[str]) -> Baseline:
        """Return the baseline with the settings of the best trial, and their source and cost.

        The file holds every setting of the sweep, its own values included. The source names the
        `command`, the scenarios and the seeds of the trials.
        """
        best, first = self.best(), self.trials[0]
        before = "failed" if first.score == FAILED else f"{first.score:.4f}"
        seeds = self.settings.seeds
        source = (
            f"Tuned: the best of {count(len(self.trials), 'trial')} of {command} on "
            f"{join_names(scenarios)}, tuning rows, seed{'s' if len(seeds) > 1 else ''} "
            f"{join_names(map(str, seeds))}: mean score {best.score:.4f} ({before} before)."
        )
        swept = axes(self.baseline, keep_rate=self.settings.keep_rate)
        values = own_values(self.baseline, best.settings)
        settings = {key: values[key] for key in swept if values[key] is not None}
        tuned = variant(self.baseline, self.baseline.name, settings)
        sources = {**tuned.sources, **dict.fromkeys(settings, source)}
        return replace(tuned, sources=sources, cost=self.cost(), family="")


def _trial(number: int, settings: Mapping[str, Any], cells: Sequence[CellResult]) -> TunedTrial:
    good = [cell for cell in cells if cell.status == "ok"]
    last = [[score for score in cell.R[-1] if score is not None] for cell in good]
    old = [row[0] for row in last if len(row) > 1]
    is_whole = len(good) == len(cells)
    return TunedTrial(
        number=number,
        settings=settings,
        score=fmean(fmean(row) for row in last) if is_whole else FAILED,
        p_o=fmean(old) if is_whole and old else math.nan,
        p_s=fmean(row[-1] for row in last) if is_whole else math.nan,
        seconds=_cost(cells)[1],
    )


def _cost(cells: Sequence[CellResult]) -> tuple[float, float]:
    """Return the epochs of cells, and their seconds of training and scoring, or until failure.

    A stage that several of the cells share, as those that average the same weights do, counts once;
    one that another method trained counts as if it had been trained here.
    """
    epochs = seconds = 0.0
    trained: set[tuple[str, int, int, float]] = set()
    stages = [(c.scenario, c.seed, i, stage) for c in cells for i, stage in enumerate(c.stages)]
    for scenario, seed, index, stage in sorted(stages, key=lambda entry: entry[3].cached):
        key = (scenario, seed, index, stage.train_seconds)  # kept to the bit with a cached stage
        if not stage.cached or key not in trained:
            trained.add(key)
            epochs += stage.epochs
            seconds += stage.train_seconds
        seconds += stage.eval_seconds
    for cell in cells:
        if cell.status == "failed" and cell.started and cell.finished:
            began, ended = map(datetime.fromisoformat, (cell.started, cell.finished))
            seconds += (ended - began).total_seconds()
    return epochs, seconds


def _searcher(study: Study, swept: Sweep) -> Any:
    """Return a searcher that knows the finished trials within the sweep."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray import tune
        from ray.tune.search.hyperopt import HyperOptSearch

    settings, space = study.settings, dict[str, Any]()
    for key, axis in swept.items():
        if not isinstance(axis, Range):
            space[key] = tune.choice(axis)
        elif axis.is_whole:
            kind = tune.lograndint if axis.scale == "log" else tune.randint
            space[key] = kind(int(axis.low), int(axis.high) + 1)
        else:
            space[key] = (tune.loguniform if axis.scale == "log" else tune.uniform)(
                axis.low, axis.high
            )
    past = []
    for trial in study.trials:
        values = own_values(study.baseline, trial.settings)
        # A baseline's own settings may lie outside the space.
        if all(values[key] in axis for key, axis in swept.items()):
            past.append(({key: values[key] for key in swept}, trial.score))
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


def _plain(value: Any, axis: Range | list[Any]) -> Any:
    """Return a suggested value as JSON holds it, floats of a range with three digits."""
    value = value.item() if hasattr(value, "item") else value
    return axis.rounded(value) if isinstance(axis, Range) and isinstance(value, float) else value
