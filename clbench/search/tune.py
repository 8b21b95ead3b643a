"""Tune every method alike: the same number of trials over its own sweep, on held-out rows.

A trial is a baseline with other settings, and its cells are ordinary cells of a run whose scores
come from the tuning split. Interrupted cells, workers, stages that methods share, conflicts and
reports are therefore those of a run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clbench.errors import RunFolderError, SearchError, SettingsError, join_names
from clbench.evaluation.run_state import RunState, read_run_state
from clbench.files import read_file, user_path
from clbench.messages import describe_errors
from clbench.results.output_folder import locked, write_text
from clbench.results.store import Store
from clbench.search.search_folder import FAILED
from clbench.search.space import Searcher
from clbench.seeds import stream_seed
from clbench.suite.baselines import Baseline, Cost
from clbench.suite.options import RunOptions
from clbench.suite.plan import make_plan
from clbench.suite.plugins import load_plugins
from clbench.suite.read import Suite, read_suite
from clbench.suite.sweep import Range, Sweep, axes, variant

if TYPE_CHECKING:
    from clbench.results.cell import CellResult

TUNING_SEEDS = (1000, 1001)
"""Default seeds of the trials: none that a suite of clbench reports."""
TRIES = 50
"""Suggestions for each new proposal, as a searcher may suggest a point again."""
ROUNDS = 4
"""Rounds into which the trials are divided; the searcher sees the scores of the rounds before."""


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
class TunePlan:
    """What to tune: the suite as its trials run it, the options of these runs, the baselines."""

    suite: Suite
    options: RunOptions
    settings: TuneSettings
    baselines: tuple[Baseline, ...]
    scenarios: tuple[str, ...]
    words: tuple[str, ...]  # of the command

    @property
    def out(self) -> Path:
        """Folder of the trials and of the tuned baselines."""
        return user_path(self.options.out or "", "--out")


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

    def tuned(self, plan: TunePlan) -> Baseline:
        """Return the baseline with the settings of the best trial, and their source and cost."""
        best = self.best()
        seeds = join_names(map(str, plan.settings.seeds))
        source = (
            f"Tuned: the best of {len(self.trials)} trials of {' '.join(plan.words[:3])} "
            f"on {join_names(plan.scenarios)}, tuning rows, seeds {seeds}: mean score "
            f"{best.score:.4f} ({self.trials[0].score:.4f} before)."
        )
        tuned = variant(self.baseline, self.baseline.name, best.settings)
        sources = {**tuned.sources, **dict.fromkeys(best.settings, source)}
        return replace(tuned, sources=sources, cost=self.cost(), family="")


class _TuneFile(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    format: Literal["clbench-tune"] = "clbench-tune"
    schema_version: Annotated[int, Field(ge=1, le=1)] = 1
    proposals: dict[str, list[dict[str, Any]]]


def make_tuning(
    suite: str | Path,
    settings: TuneSettings = TuneSettings(),
    options: RunOptions = RunOptions(),  # noqa: B008 - immutable
) -> TunePlan:
    """Check a tuning and return its plan; trains and writes nothing.

    Parameters
    ----------
    suite
        Name or path of a suite, whose scenarios the methods are tuned on.
    settings
        How to tune.
    options
        Those of a run, except `seeds`; `out` is by default ``results/SUITE-tune``.

    Raises
    ------
    ClbenchError
        If a name, setting or option is wrong, or the suite reports a seed of the trials.
    """
    load_plugins(options.plugins)
    source = read_suite(suite)
    if common := sorted({*source.file.seeds} & {*settings.seeds}):
        raise SettingsError(
            f"--seeds: the suite reports {join_names(map(str, common))}. Choose other seeds to "
            "tune on."
        )
    protocol = source.file.protocol.model_copy(update={"score_on": "tuning", "curve_points": 0})
    file = source.file.model_copy(update={"protocol": protocol, "name": f"{source.name}-tune"})
    out = options.out or Path("results") / file.name
    options = replace(options, seeds=settings.seeds, references=False, out=out)
    plan = make_plan(replace(source, file=file), options)
    names = tuple(scenario.name for scenario in plan.scenarios)
    words = ("clbench", "tune", *(w for w in plan.command[2:] if w != "--no-references"))
    return TunePlan(plan.suite, options, settings, plan.baselines, names, words)


def tuning_rounds(plan: TunePlan) -> Iterator[RunState]:
    """Yield the state of each round of trials, to be run before the next one is asked for.

    Trials of an earlier session come first. The proposals are in ``tune.json`` before a trial
    starts. A failed cell runs once a session.

    Raises
    ------
    RunFolderError
        If the folder holds something else.
    """
    size, tried = -(-plan.settings.trials // ROUNDS), set[str]()
    studies, cells = read_studies(plan), len(plan.scenarios) * len(plan.settings.seeds)
    while True:
        variants = [point for study in studies for point in study.variants()]
        if variants:
            run = make_plan(plan.suite, replace(plan.options, methods=variants))
            state = read_run_state(replace(run, command=plan.words))
            pending = tuple(cell for cell in state.pending if cell.key not in tried)
            tried |= {cell.key for cell in pending}
            yield replace(state, pending=pending)
        _read(plan, studies, cells)
        is_open = [study for study in studies if _is_open(study, plan.settings)]
        if not is_open:
            break
        for study in is_open:
            study.propose(min(size, plan.settings.trials - len(study.proposals)), plan.settings)
        proposals = {study.baseline.name: study.proposals for study in is_open}
        file = _TuneFile(proposals={**_proposals(plan), **proposals})
        with locked(plan.out, marker=plan.out / "tune.json"):
            write_text(plan.out / "tune.json", file.model_dump_json(indent=1) + "\n")


def read_studies(plan: TunePlan) -> list[Study]:
    """Return the studies of a tuning with their proposals and finished trials."""
    proposals = _proposals(plan)
    studies = [Study(b, proposals.get(b.name, [])[: plan.settings.trials]) for b in plan.baselines]
    _read(plan, studies, len(plan.scenarios) * len(plan.settings.seeds))
    return studies


def write_tuned(plan: TunePlan, studies: Sequence[Study]) -> list[Path]:
    """Write a baseline file for each study that has a result; return their paths."""
    paths = []
    for study in studies:
        if any(trial.score != FAILED for trial in study.trials):
            paths.append(plan.out / f"{study.baseline.name}.toml")
            write_text(paths[-1], study.tuned(plan).to_toml())
    return paths


def _read(plan: TunePlan, studies: Sequence[Study], count: int) -> None:
    by_name: dict[str, list[CellResult]] = {}
    for cell in Store(plan.out).read().cells:
        if cell.scenario in plan.scenarios and cell.seed in plan.settings.seeds:
            by_name.setdefault(cell.baseline, []).append(cell)
    for study in studies:
        study.read(by_name, count)


def _is_open(study: Study, settings: TuneSettings) -> bool:
    seconds = math.inf if settings.minutes is None else 60.0 * settings.minutes
    spent = sum(trial.seconds for trial in study.trials)
    return len(study.proposals) < settings.trials and spent < seconds and not study.is_exhausted


def _proposals(plan: TunePlan) -> dict[str, list[dict[str, Any]]]:
    """Return the proposals of earlier sessions by baseline."""
    path = plan.out / "tune.json"
    try:
        return _TuneFile.model_validate_json(read_file(path)).proposals
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValidationError) as error:
        reason = describe_errors(error)[0] if isinstance(error, ValidationError) else error.strerror
        raise RunFolderError(f"{path} cannot be read: {reason}. Choose another --out.") from error


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
