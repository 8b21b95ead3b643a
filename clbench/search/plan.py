"""The plans of a search and of a tuning: their settings, and the suite that they change.

A search trains one pair of tasks at other rates by depth. A trial of a tuning is a baseline with
other settings, and its cells are ordinary cells of a run whose scores come from the tuning split:
interrupted cells, workers, stages that methods share, conflicts and reports are those of a run.
"""

import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from clbench.core.errors import RunFolderError, SettingsError, join_names
from clbench.models.groups import Division, depth_of
from clbench.results.store import Store
from clbench.runner.run_state import RunState, read_run_state
from clbench.search.rates import HIGHEST, LOWEST, SearchOrigin, SearchSpace
from clbench.suite.options import RunOptions
from clbench.suite.plan import Plan, make_plan, validate
from clbench.suite.plugins import load_plugins
from clbench.suite.read import Suite, read_suite
from clbench.suite.schema import Question
from clbench.suite.validation import stages_of

MAX_GROUPS = 10
"""Groups of Kenneweg et al. 2022, section 3.1: embeddings, eight of layers, head."""
TUNING_SEEDS = (1000, 1001)
"""Default seeds of the trials of a tuning: none that a suite of clbench reports."""
QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the search
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # workers import the user's modules from the driver's folder
}
"""Environment in which Ray Tune writes no tables or logs, and leaves signals and folders alone."""

Searcher = Literal["bayes", "random"]
Scheduler = Literal["asha", "none"]


@contextmanager
def quiet_ray() -> Iterator[None]:
    """Silence Ray Tune, whose output repeats the trial files."""
    logger = logging.getLogger("ray")
    level, own = logger.level, {k: v for k, v in QUIET.items() if k not in os.environ}
    logger.setLevel(logging.CRITICAL)
    os.environ.update(own)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        for name in own:
            os.environ.pop(name, None)


def check_settings(settings: Any, rules: Mapping[str, tuple[bool, str]]) -> None:
    """Raise a SettingsError for the first setting whose rule does not hold."""
    for name, (holds, rule) in rules.items():
        if not holds:
            option = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{option} {getattr(settings, name)!r}: must be {rule}.")


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
        in_time = self.time_limit is None or self.time_limit > 0
        rules = {
            "searcher": (self.searcher in ("bayes", "random"), "bayes or random"),
            "scheduler": (self.scheduler in ("asha", "none"), "asha or none"),
            "trials": (self.trials >= 1, "1 or more"),
            "grace": (self.grace >= 1, "1 or more"),
            "reduction": (1.0 < self.reduction < 1e6, "above 1 and below 1e6"),
            "seed": (0 <= self.seed < 2**32, "from 0 to 4294967295"),
            "time_limit": (in_time, "above 0 seconds"),
        }
        check_settings(self, rules)


@dataclass(frozen=True)
class SearchPlan:
    """The pair of tasks to search on, the settings, and the search space."""

    run: Plan  # of one cell of the pair, scored on the rows that give the rewards
    settings: SearchSettings
    space: SearchSpace

    @property
    def name(self) -> str:
        """Name of the pair."""
        return self.run.scenarios[0].name

    @property
    def split(self) -> str:
        """Description of the rows that give the rewards."""
        if self.settings.paper_split:
            return "validation (the paper's choice: the split that is also reported)"
        share = self.run.protocol.tuning_fraction
        return f"tuning ({share:g} of the training rows, held out)"

    def recipe(self) -> dict[str, Any]:
        """Return everything that decides the trials and their scores, by section, as plain JSON."""
        settings, space = self.settings, self.space
        # Before it had a task, halving counted the epochs of both.
        halving = {"grace": settings.grace, "reduction": settings.reduction, "task": "D_s"}
        search = {
            **asdict(space.origin),
            "groups": space.groups,
            "lowest": space.lowest,
            "highest": space.highest,
            "searcher": settings.searcher,
            "scheduler": settings.scheduler,
            "halving": halving if settings.scheduler == "asha" else None,
            "split": self.split,
        }
        cell = {k: v for k, v in self.run.cells[0].recipe.items() if k != "method"}
        return {**cell, "search": search}


def suite_for_trials(suite: str | Path, options: RunOptions, **protocol: Any) -> Suite:
    """Return a suite with changes of its protocol, without points of curves or a question."""
    load_plugins(options.plugins)
    source = read_suite(suite)
    changed = source.file.protocol.model_copy(update={"curve_points": 0, **protocol})
    file = source.file.model_copy(update={"protocol": changed, "question": Question()})
    return replace(source, file=file)


def make_search(
    suite: str | Path,
    scenario: str | None = None,
    settings: SearchSettings = SearchSettings(),
    options: RunOptions = RunOptions(),  # noqa: B008 - immutable
) -> SearchPlan:
    """Check the settings of a search and return its plan; trains and writes nothing.

    Parameters
    ----------
    suite, scenario
        A scenario of two tasks; its name can be omitted if the suite has only one scenario.
    settings
        How to search.
    options
        Those of a run, except `methods`, `scenarios` and `seeds`; `out` is by default
        ``results/SUITE-search/SCENARIO``.

    Raises
    ------
    ClbenchError
        If a name, setting or option is wrong.
    """
    from clbench.models.checkpoint import load_backbone

    split = "validation" if settings.paper_split else "tuning"
    source = suite_for_trials(suite, options, score_on=split)
    scenarios = None if scenario is None else [scenario]
    cell = replace(
        options, methods=["vanilla"], scenarios=scenarios, seeds=[settings.seed], references=False
    )
    cell.choose_scenarios(source, "scenario")  # so that a message names this option
    plan = make_plan(source, cell)
    names = [spec.name for spec in plan.scenarios]
    if len(names) > 1:
        raise SettingsError(
            f"--scenario: a search needs one pair of tasks, not {len(names)} scenarios. Give one "
            f"of {join_names(names)}."
        )
    if (tasks := stages_of(plan.scenarios[0])) != 2:
        raise SettingsError(
            f"--scenario {names[0]}: has {tasks} tasks, and the reward p_o + p_s needs two. Choose "
            "another scenario."
        )
    if options.out is None:
        plan = replace(plan, out=Path("results") / f"{source.name}-search" / names[0])
    depth = depth_of(load_backbone(plan.protocol.model, plan.protocol.revision))
    origin = SearchOrigin(plan.protocol.lr, depth, settings.division)
    groups = min(MAX_GROUPS, depth + 2) if settings.groups is None else settings.groups
    space = SearchSpace(origin, groups, settings.lowest, settings.highest)
    return SearchPlan(plan, settings, space)


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
        in_time = self.minutes is None or 0.0 < self.minutes < math.inf
        rules = {
            "trials": (1 <= self.trials <= 10_000, "from 1 to 10000"),
            "minutes": (in_time, "a number above 0"),
            "searcher": (self.searcher in ("bayes", "random"), "bayes or random"),
        }
        check_settings(self, rules)

    def words(self) -> tuple[str, ...]:
        """Return the options of ``clbench tune`` for these settings, without the seeds."""
        words = ["--trials", str(self.trials)]
        words += [] if self.minutes is None else ["--minutes", f"{self.minutes:g}"]
        words += [] if self.searcher == "bayes" else ["--searcher", self.searcher]
        return *words, *(["--keep-rate"] if self.keep_rate else [])


@dataclass(frozen=True)
class TunePlan:
    """How to tune, the options of its runs, and the plan of each method's first trial."""

    settings: TuneSettings
    options: RunOptions
    first: Plan

    @property
    def out(self) -> Path:
        """Folder of the trials and of the tuned baselines."""
        return self.first.out

    @property
    def file(self) -> Path:
        """The file that holds the proposals."""
        return self.out / "tune.json"

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of the scenarios to tune on."""
        return tuple(scenario.name for scenario in self.first.scenarios)

    @property
    def command(self) -> tuple[str, ...]:
        """Words of the ``clbench tune`` command, without ``--out``."""
        words = [word for word in self.first.command[2:] if word != "--no-references"]
        return "clbench", "tune", *words, *self.settings.words()

    def state(self, plan: Plan) -> RunState:
        """Return the state of the folder for a round of trials."""
        return read_run_state(replace(plan, command=self.command), can_replace=False)


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
        If a name, setting or option is wrong, the suite reports a seed of the trials, or the
        folder holds something else.
    """
    if options.sweep is not None:
        raise SettingsError("--sweep: a tuning chooses its own points. Leave it out.")
    source = suite_for_trials(suite, options, score_on="tuning", probe_rows=None)
    if common := sorted({*source.file.seeds} & {*settings.seeds}):
        raise SettingsError(
            f"--seeds: the suite reports {join_names(map(str, common))}. Choose other seeds to "
            "tune on."
        )
    options.choose_scenarios(source)  # so that errors give the name of the suite
    file = source.file.model_copy(update={"name": f"{source.name}-tune"})
    out = options.out or Path("results") / file.name
    options = replace(options, seeds=settings.seeds, references=False, out=out)
    first = make_plan(replace(source, file=file), options)
    names = {baseline.name for baseline in first.baselines}
    for name in names:
        if taken := names & {f"{name}-t{number}" for number in range(2, settings.trials + 1)}:
            raise SettingsError(
                f"--methods: {min(taken)!r} is also the name of a trial of {name}. Rename it."
            )
    plan = TunePlan(settings, options, first)
    Store(plan.out).check(file.name)
    validate(first, first.cells)
    plan.state(first)  # raises if its cells are of other settings
    if not plan.file.exists():
        for name in names:
            if (path := plan.out / f"{name}.toml").exists():
                raise RunFolderError(f"{path} would be overwritten. Choose another --out.")
    return plan
