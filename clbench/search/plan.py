"""The plans of a search and of a tuning: their settings, and the suite that they change.

A search trains one pair of tasks at other rates by depth. A trial of a tuning is a baseline with
other settings, and its cells are ordinary cells of a run whose scores come from the tuning split:
interrupted cells, workers, stages that methods share, conflicts and reports are those of a run.
"""

import re
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from clbench.core.errors import RunFolderError, SettingsError, join_names, named
from clbench.core.options import check_types, checks_arguments, described, search
from clbench.core.registry import Seed
from clbench.models.groups import Division, depth_of
from clbench.results.store import Store
from clbench.runner.run_state import RunState, read_run_state
from clbench.search.rates import HIGHEST, LOWEST, SearchOrigin, SearchSpace
from clbench.suite.options import RunOptions, read_seeds
from clbench.suite.plan import Plan, make_plan, validate
from clbench.suite.read import Suite, read_suite
from clbench.suite.schema import Question
from clbench.suite.validation import stages_of

MAX_GROUPS = 10
"""Groups of Kenneweg et al. 2022, section 3.1: embeddings, eight of layers, head."""
TUNING_SEEDS = (1000, 1001)
"""Default seeds of trials, of a search the first: none that a suite of clbench reports."""
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of each unit of a time."""

Searcher = Annotated[
    Literal["bayes", "random"],
    search("Search algorithm: bayes (tree-structured Parzen estimators) or random."),
]


def read_seconds(text: str) -> float:
    """Return ``90``, ``90s``, ``30m``, ``2h`` or ``1d`` in seconds, or raise a SettingsError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text)
    if match is None or float(match[1]) == 0:
        raise SettingsError(
            f"{named('time_limit')} {text!r}: must be a time such as 90s, 30m or 2h."
        )
    return float(match[1]) * UNITS[match[2]]


@described
@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search, by default those of Kenneweg et al. 2022 (section 4 and code).

    ``asha`` is asynchronous successive halving (Li et al. 2020, algorithm 2, one bracket): it
    compares trials after `grace`, grace·reduction, grace·reduction² … epochs on D_s. For `division`
    see `clbench.models.groups.divide_layers`. `make_search`, which knows the model, checks rates
    and groups.

    Attributes
    ----------
    {options}
    """

    trials: Annotated[
        PositiveInt, search("Finished trials in all, earlier sessions included.", "N")
    ] = 50
    searcher: Searcher = "bayes"
    scheduler: Annotated[
        Literal["asha", "none"],
        search("Scheduler: asha stops weak trials early; none stops no trial."),
    ] = "asha"
    grace: Annotated[
        PositiveInt, search("Epochs on D_s before asha may stop a trial.", "EPOCHS")
    ] = 1
    reduction: Annotated[
        float,
        Field(gt=1, lt=1e6),
        search("asha continues a trial only if it is among the best 1/reduction so far.", "X"),
    ] = 2.0
    groups: Annotated[
        int | None,
        search("Number of learning rates.", "N", default="10, at most layers + 2"),
    ] = None
    division: Annotated[Division, search("Layer groups of the authors' code or of the paper.")] = (
        "code"
    )
    lowest: Annotated[float, search("Lowest learning rate.", "RATE")] = LOWEST
    highest: Annotated[float, search("Highest learning rate.", "RATE")] = HIGHEST
    seed: Annotated[Seed, search("Seed of the searcher and of training.", "N")] = TUNING_SEEDS[0]
    paper_split: Annotated[
        bool,
        search(
            "Reward trials on the reported split, as the authors' code does, instead of held-out "
            "training rows. The resulting scores are optimistic."
        ),
    ] = False
    time_limit: Annotated[
        PositiveFloat | None,
        search(
            "Time after which the search ends, such as 90s, 30m or 2h; seconds in Python.",
            "TIME",
            default="no limit",
            read=read_seconds,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_types(self)


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
    source = read_suite(suite, options.plugins)
    changed = source.file.protocol.model_copy(update={"curve_points": 0, **protocol})
    file = source.file.model_copy(update={"protocol": changed, "question": Question()})
    return replace(source, file=file)


@checks_arguments
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
        If a name, setting or option is wrong, or autogluon.core is missing.
    """
    from clbench.models.checkpoint import load_backbone

    if find_spec("autogluon") is None:
        raise SettingsError(
            "clbench search needs autogluon.core: install it on Python 3.11 to 3.13, as it has no "
            "version for 3.14. `clbench tune` does not need it."
        )
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
            f"{named('scenario')}: a search needs one pair of tasks, not {len(names)} scenarios. "
            f"Give one of {join_names(names)}."
        )
    if (tasks := stages_of(plan.scenarios[0])) != 2:
        raise SettingsError(
            f"{named('scenario', names[0])}: has {tasks} tasks, and the reward p_o + p_s needs "
            "two. Choose another scenario."
        )
    if options.out is None:
        plan = replace(plan, out=Path("results") / f"{source.name}-search" / names[0])
    depth = depth_of(load_backbone(plan.protocol.model, plan.protocol.revision))
    origin = SearchOrigin(plan.protocol.lr, depth, settings.division)
    groups = min(MAX_GROUPS, depth + 2) if settings.groups is None else settings.groups
    space = SearchSpace(origin, groups, settings.lowest, settings.highest)
    return SearchPlan(plan, settings, space)


@described
@dataclass(frozen=True)
class TuneSettings:
    """How to tune. The first trial of a method has the settings of its baseline.

    Attributes
    ----------
    {options}
    """

    trials: Annotated[
        int,
        Field(ge=1, le=10_000),
        search("Trials of each method, earlier sessions included.", "N"),
    ] = 20
    minutes: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False),
        search("Minutes after which a method gets no further trials.", "X", default="no limit"),
    ] = None
    seeds: Annotated[
        tuple[Seed, ...],
        search("Seeds of each trial; none that the suite reports.", "SEEDS", read=read_seeds),
    ] = TUNING_SEEDS
    searcher: Searcher = "bayes"
    keep_rate: Annotated[
        bool, search("Keep the flat rate, which is otherwise part of every sweep.")
    ] = False

    def __post_init__(self) -> None:
        check_types(self)

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
    """Check a tuning on a suite's scenarios and return its plan; trains and writes nothing.

    Of the options, `seeds` does not count; `out` is by default ``results/SUITE-tune``. Raises a
    ClbenchError if one is wrong, the suite reports a seed of the trials, or the folder holds
    something else.
    """
    if options.sweep is not None:
        raise SettingsError(f"{named('sweep')}: a tuning chooses its own points. Leave it out.")
    source = suite_for_trials(suite, options, score_on="tuning", probe_rows=None)
    if common := sorted({*source.file.seeds} & {*settings.seeds}):
        raise SettingsError(
            f"{named('seeds')}: the suite reports {join_names(map(str, common))}. Choose other "
            "seeds to tune on."
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
                f"{named('methods')}: {min(taken)!r} is also the name of a trial of {name}. Rename "
                "it."
            )
    plan = TunePlan(settings, options, first)
    Store(plan.out).check(file.name)
    validate(first, first.cells)
    plan.state(first)  # raises if its cells are of other settings
    if not plan.file.exists():
        for name in names:
            if (path := plan.out / f"{name}.toml").exists():
                raise RunFolderError(f"{path} would be overwritten. Choose another {named('out')}.")
    return plan
