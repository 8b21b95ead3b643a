"""The trials of each method under tuning: what is proposed, what comes of it, and the best."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from clbench.core.errors import RunFolderError, SettingsError, SuiteError, count, join_names, named
from clbench.core.files import locked, write_atomically
from clbench.core.seeds import stream_seed
from clbench.results.cell import CellResult
from clbench.results.resume import first_difference
from clbench.results.store import Store
from clbench.runner.run_state import RunState
from clbench.search.plan import TunePlan
from clbench.search.trials import FAILED, quiet_ray, read_json
from clbench.suite import baselines, sweeps
from clbench.suite.plan import make_plan
from clbench.suite.validation import check_methods

ROUNDS = 4
"""Rounds into which the trials are divided; the searcher sees the scores of the rounds before."""
TRIES = 50
"""Suggestions for each new proposal, as a searcher may suggest a point again."""
GENERATED = "# Written by clbench tune, which overwrites it when it runs again: edit a copy."
"""First line of the file of a tuned baseline."""


class _Trials(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    searcher: str
    sweep: baselines.Sweep
    proposals: list[dict[str, Any]]


class _TuneFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: Literal["clbench-tune"] = "clbench-tune"
    schema_version: Literal[1] = 1
    methods: dict[str, _Trials] = {}


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

    @classmethod
    def of(cls, number: int, settings: Mapping[str, Any], cells: Sequence[CellResult]) -> Self:
        """Return the trial that has these finished or failed cells."""
        _, seconds = training_cost(cells)
        if any(cell.status != "ok" for cell in cells):
            return cls(number, settings, FAILED, math.nan, math.nan, seconds)
        last = [[score for score in cell.R[-1] if score is not None] for cell in cells]
        old = [row[0] for row in last if len(row) > 1]
        p_o, p_s = fmean(old) if old else math.nan, fmean(row[-1] for row in last)
        return cls(number, settings, fmean(map(fmean, last)), p_o, p_s, seconds)


@dataclass
class Study:
    """The trials of one baseline: settings proposed so far, and the finished trials.

    Attributes
    ----------
    plan, baseline
        How to tune, and what; points that do not fit the protocol are left out.
    sweep, most
        The values of each setting that is tuned; how many trials there are at the end, unless the
        minutes are over before.
    proposals
        Changed settings by trial, also of trials beyond those that the settings ask for.
    is_exhausted
        Whether every point of the sweep has been proposed.
    trials, cells
        Finished trials, and all cells of the trials, seeds and scenarios that the plan asks for.
    all_cells
        The cells of all proposals, those of other scenarios and seeds included.
    """

    plan: TunePlan
    baseline: baselines.Baseline
    proposals: list[dict[str, Any]] = field(default_factory=list)
    is_exhausted: bool = False
    trials: list[TunedTrial] = field(default_factory=list)
    cells: list[CellResult] = field(default_factory=list)
    all_cells: list[CellResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings, baseline = self.plan.settings, self.baseline
        self.sweep = sweeps.axes(baseline, keep_rate=settings.keep_rate)
        points = sweeps.count_points(baseline, keep_rate=settings.keep_rate)
        self.most = int(min(settings.trials, points))

    @property
    def is_open(self) -> bool:
        """Whether the method gets a further round of trials."""
        settings, (_, seconds) = self.plan.settings, training_cost(self.cells)
        in_time = settings.minutes is None or seconds < 60.0 * settings.minutes
        return in_time and len(self.proposals) < settings.trials and not self.is_exhausted

    @property
    def failures(self) -> int:
        """How many of the trials have failed."""
        return sum(trial.score == FAILED for trial in self.trials)

    @property
    def best(self) -> TunedTrial | None:
        """The trial with the highest score, the earlier one if tied; None if none succeeded."""
        best = max(self.trials, key=lambda trial: trial.score, default=None)
        return None if best is None or best.score == FAILED else best

    def unfit(self) -> list[str]:
        """Return notes on values of the sweep that do not fit the protocol, and so are left out."""
        notes = []
        for key, axis in self.sweep.items():
            for value in (axis.low, axis.high) if isinstance(axis, baselines.Range) else axis:
                try:
                    self._check({key: value})
                except (SettingsError, SuiteError) as error:
                    notes.append(f"Points with {key} = {value} are left out: {error}")
        return notes

    def _check(self, proposal: Mapping[str, Any]) -> None:
        """Raise a SettingsError or SuiteError if a point does not fit the protocol."""
        point = baselines.variant(self.baseline, self.baseline.name, proposal)
        check_methods([point], self.plan.first.protocol)

    def variants(self) -> list[baselines.Baseline]:
        """Return the baseline of each proposal, the first one under its own name."""
        name = self.baseline.name
        return [
            baselines.variant(self.baseline, f"{name}-t{number}" if number > 1 else name, settings)
            for number, settings in enumerate(self.proposals, 1)
        ]

    def read(self, by_name: Mapping[str, list[CellResult]]) -> None:
        """Take the cells of the proposals, and the trials that are finished."""
        settings, self.trials, self.cells, self.all_cells = self.plan.settings, [], [], []
        wanted = set(product(self.plan.scenarios, settings.seeds))
        for number, point in enumerate(self.variants(), 1):
            cells = by_name.get(point.name, [])
            self.all_cells += cells
            cells = [cell for cell in cells if (cell.scenario, cell.seed) in wanted]
            if number > settings.trials:
                continue
            self.cells += cells
            if len(cells) == len(wanted):
                self.trials.append(TunedTrial.of(number, self.proposals[number - 1], cells))

    def propose(self, number: int) -> None:
        """Add `number` new proposals, the first one with the settings of the baseline.

        There are fewer if the sweep has no more points, or the plan asks for no more trials.
        """
        total = len(self.proposals) + number
        if not self.proposals:
            self.proposals.append({})
        missing = min(total, self.most) - len(self.proposals)
        seen = [sweeps.own_values(self.baseline, proposal) for proposal in self.proposals]
        for proposal in self._suggestions(TRIES * missing) if missing > 0 else ():
            with suppress(SettingsError, SuiteError):
                self._check(proposal)
                values = sweeps.own_values(self.baseline, proposal)
                if values not in seen:
                    seen.append(values)
                    self.proposals.append(proposal)
            if len(self.proposals) == min(total, self.most):
                break
        self.is_exhausted = len(self.proposals) < total

    def _suggestions(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield what the searcher suggests, `number` times, then every point of a finite sweep."""
        searcher = self._searcher()
        for attempt in range(number):
            suggestion = searcher.suggest(f"new{attempt}")
            yield {key: _plain(value, self.sweep[key]) for key, value in suggestion.items()}
        if not any(isinstance(axis, baselines.Range) for axis in self.sweep.values()):
            yield from (
                dict(zip(self.sweep, point, strict=True)) for point in product(*self.sweep.values())
            )

    def _searcher(self) -> Any:
        """Return a searcher that knows the finished trials within the sweep."""
        with quiet_ray():
            from clbench.search.ray_tune import domains, make_searcher, tell

        points, scores, settings = list[dict[str, Any]](), list[float](), self.plan.settings
        for trial in self.trials:
            values = sweeps.own_values(self.baseline, trial.settings)
            # A baseline's own settings may lie outside the sweep.
            if all(values[key] in axis for key, axis in self.sweep.items()):
                points.append({key: _drawn(values[key], axis) for key, axis in self.sweep.items()})
                scores.append(trial.score)
        seed = stream_seed("tune", self.baseline.name, len(self.proposals)) % 2**32
        random_points = -(-settings.trials // ROUNDS)
        searcher = make_searcher(points, seed, settings.searcher, random_points)
        searcher.set_search_properties("reward", "max", domains(self.sweep))
        tell(searcher, scores)
        return searcher

    def to_file(self) -> _Trials:
        """Return the proposals, and what decides them, for ``tune.json``."""
        searcher = self.plan.settings.searcher
        return _Trials(searcher=searcher, sweep=self.sweep, proposals=self.proposals)

    def cost(self) -> baselines.Cost:
        """Return the cost of all cells, those of other scenarios and seeds included."""
        epochs, seconds = training_cost(self.all_cells)
        return baselines.Cost(
            trials=len({cell.baseline for cell in self.all_cells}),
            epochs=round(epochs, 4),
            seconds=round(seconds, 3),
            seeds=tuple(sorted({cell.seed for cell in self.all_cells})),
        )

    def tuned(self, best: TunedTrial) -> baselines.Baseline:
        """Return the baseline with the settings of the best trial.

        Its sources name the command, the scenarios and the seeds of the trials.
        """
        first, seeds = self.trials[0].score, self.plan.settings.seeds
        before = "failed" if first == FAILED else f"{first:.4f}"
        source = (
            f"Tuned: the best of {count(len(self.trials), 'trial')} of "
            f"{' '.join(self.plan.command)} on {join_names(self.plan.scenarios)}, tuning rows, "
            f"seed{'s' if len(seeds) > 1 else ''} {join_names(map(str, seeds))}: mean score "
            f"{best.score:.4f} ({before} before)."
        )
        values = sweeps.own_values(self.baseline, best.settings)
        settings = {key: values[key] for key in self.sweep if values[key] is not None}
        tuned = baselines.variant(self.baseline, self.baseline.name, settings)
        sources = {**tuned.sources, **dict.fromkeys(settings, source)}
        return replace(tuned, sources=sources, cost=self.cost(), family="")


def training_cost(cells: Sequence[CellResult]) -> tuple[float, float]:
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


def _drawn(value: Any, axis: baselines.Range | list[Any]) -> Any:
    """Return a value of an axis as the searcher knows it: the position of a listed one."""
    return value if isinstance(axis, baselines.Range) else axis.index(value)


def _plain(drawn: Any, axis: baselines.Range | list[Any]) -> Any:
    """Return what the searcher drew as JSON holds it, floats of a range with three digits."""
    value = drawn.item() if hasattr(drawn, "item") else drawn
    if not isinstance(axis, baselines.Range):
        return axis[value]
    return axis.rounded(value) if isinstance(value, float) else value


def tuning_rounds(plan: TunePlan) -> Iterator[RunState]:
    """Yield the state of each round of trials, to be run before the next one is asked for.

    Trials of an earlier session come first. The proposals are in ``tune.json`` before a trial
    starts. A failed cell runs once a session. Raises a RunFolderError if the folder holds something
    else.
    """
    trials, started = plan.settings.trials, set[str]()
    studies = read_studies(plan)
    while True:
        variants = [point for study in studies for point in study.variants()[:trials]]
        if variants:
            state = plan.state(make_plan(plan.first.suite, replace(plan.options, methods=variants)))
            pending = tuple(cell for cell in state.pending if cell.key not in started)
            started |= {cell.key for cell in pending}
            yield replace(state, pending=pending)
        _read_cells(plan, studies)
        is_open = [study for study in studies if study.is_open]
        if not is_open:
            break
        file = _read_file(plan)
        for study in is_open:
            study.propose(min(-(-trials // ROUNDS), trials - len(study.proposals)))
            file.methods[study.baseline.name] = study.to_file()
        with locked(plan.out, marker=plan.file):
            write_atomically(plan.file, file.model_dump_json(indent=1) + "\n")


def read_studies(plan: TunePlan) -> list[Study]:
    """Return the studies of a tuning with their proposals and finished trials.

    Raises a RunFolderError if the trials in the folder come from another sweep or searcher.
    """
    file, studies = _read_file(plan), [Study(plan, baseline) for baseline in plan.first.baselines]
    for study in studies:
        if before := file.methods.get(study.baseline.name):
            new = study.to_file().model_dump(exclude={"proposals"})
            if difference := first_difference(before.model_dump(), new):
                where = f"{plan.file}: {study.baseline.name}"
                raise RunFolderError(f"{where} {difference}. Choose another {named('out')}.")
            study.proposals = before.proposals
            points = [replace(point, path=None) for point in study.variants()]
            try:
                check_methods(points, plan.first.protocol)
            except (SettingsError, SuiteError) as error:
                raise RunFolderError(
                    f"{plan.file}: a proposal for {study.baseline.name} is wrong: {error} Restore "
                    f"the file, or choose another {named('out')}."
                ) from error
    _read_cells(plan, studies)
    return studies


def write_tuned(plan: TunePlan, studies: Sequence[Study]) -> list[Path]:
    """Write a baseline file for each study that has a result; return their paths."""
    paths = []
    for study in studies:
        if best := study.best:
            paths.append(plan.out / f"{study.baseline.name}.toml")
            write_atomically(paths[-1], f"{GENERATED}\n{study.tuned(best).to_toml()}")
    return paths


def _read_file(plan: TunePlan) -> _TuneFile:
    return read_json(plan.file, _TuneFile) or _TuneFile()


def _read_cells(plan: TunePlan, studies: Sequence[Study]) -> None:
    by_name: dict[str, list[CellResult]] = {}
    for cell in Store(plan.out).read().cells:
        by_name.setdefault(cell.baseline, []).append(cell)
    for study in studies:
        study.read(by_name)
