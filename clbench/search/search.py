"""A search from its suite to the baselines that come of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from clbench.errors import SearchError, SettingsError
from clbench.evaluation.resources import Resources
from clbench.search.baseline import FoundOn
from clbench.search.halving import Halving
from clbench.search.outcome import Found, outcome, write_outcome
from clbench.search.record import TrialRecord
from clbench.search.search_folder import SearchFolder
from clbench.search.space import HIGHEST, LOWEST, Space, usual_groups
from clbench.search.tuning import Searcher
from clbench.suite.options import RunOptions

if TYPE_CHECKING:
    from clbench.models.groups import Division
    from clbench.suite.plan import Plan


FEW_ROWS = 100
"""Rows of a task to be rewarded on, below which the user is warned."""


class SearchListener(Protocol):
    """Told of what happens, in the process that searches."""

    def started(self, trials: int, pending: int, epochs: int) -> None:
        """Called once: trials in all, those to be tried now, epochs of a whole one."""

    def trial_ended(self, trial: TrialRecord) -> None:
        """Called when a trial is complete, was stopped, or failed."""

    def note(self, text: str) -> None:
        """Called with a line for the user."""


class _Silent:
    def started(self, trials: int, pending: int, epochs: int) -> None:
        pass

    def trial_ended(self, trial: TrialRecord) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True)
class SearchSettings:
    """How to search; the defaults are those of Kenneweg et al. 2022 (section 4, authors' code).

    Attributes
    ----------
    trials
        In all, those of before included.
    searcher
        ``bayes`` or ``random``.
    scheduler
        ``asha`` stops hopeless trials, ``none`` lets all come to their end.
    grace, reduction
        When ``asha`` stops them; see `clbench.search.halving.Halving`.
    groups
        Number of rates, embeddings and head included; None is ten, or one a layer where the
        model has fewer than eight.
    division
        How layers are grouped; see `clbench.models.groups.divide_layers`.
    lowest, highest
        Range of each rate.
    seed
        Of searcher and training.
    paper_split
        Reward on the split that is reported, as the authors' code does, instead of rows held
        out of the training rows. Scores of what is found so are too good.
    time_limit
        Seconds of training after which the search ends, whatever still runs; None is no limit.

    Raises
    ------
    SettingsError
        If a value is out of range.
    """

    trials: int = 50
    searcher: Searcher = "bayes"
    scheduler: Literal["asha", "none"] = "asha"
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
        for name, known in (("searcher", ("bayes", "random")), ("scheduler", ("asha", "none"))):
            if getattr(self, name) not in known:
                raise SettingsError(
                    f"--{name} {getattr(self, name)!r}: must be {' or '.join(known)}."
                )
        if self.trials < 1:
            raise SettingsError(f"--trials {self.trials}: must be 1 or more.")
        if self.seed < 0:
            raise SettingsError(f"--seed {self.seed}: must be 0 or more.")
        if self.time_limit is not None and not self.time_limit > 0:
            raise SettingsError(f"--time-limit {self.time_limit:g}: must be above 0 seconds.")
        Halving(self.grace, self.reduction)

    @property
    def halving(self) -> Halving | None:
        """When trials are stopped; None if they are not."""
        return Halving(self.grace, self.reduction) if self.scheduler == "asha" else None


@dataclass(frozen=True)
class SearchPlan:
    """What is searched.

    Attributes
    ----------
    run
        Plan of one cell of the pair, scored on the split of the search.
    settings, space
        How to search, and over what.
    """

    run: Plan
    settings: SearchSettings
    space: Space

    @property
    def split(self) -> str:
        """What trials are rewarded on, in words."""
        if self.settings.paper_split:
            return "validation (the paper's choice: the split that is also reported)"
        share = self.run.protocol.tuning_fraction
        return f"tuning ({share:g} of the training rows, held out)"

    def recipe(self) -> dict[str, Any]:
        """What decides trials and their scores."""
        settings, space = self.settings, self.space
        shared = {k: v for k, v in self.run.cells[0].recipe.items() if k != "method"}
        return {
            **shared,
            "search": {
                **asdict(space.found),
                "groups": space.groups,
                "lowest": space.lowest,
                "highest": space.highest,
                "searcher": settings.searcher,
                "scheduler": settings.scheduler,
                "halving": None if settings.halving is None else asdict(settings.halving),
                "split": self.split,
            },
        }

    def described(self) -> dict[str, Any]:
        """What besides the recipe a reader wants to know."""
        from clbench.evaluation.run_cell import versions

        spec = self.run.scenarios[0]
        return {
            "suite": self.run.suite.name,
            "scenario": spec.name,
            "tasks": list(spec.task_names),
            "model": self.run.protocol.model,
            "split": self.split,
            "groups": self.space.names,
            "versions": versions(),
        }


def make_search(
    suite: str | Path,
    scenario: str | None = None,
    settings: SearchSettings = SearchSettings(),
    options: RunOptions = RunOptions(),  # noqa: B008 - it cannot be changed
    **changes: Any,
) -> SearchPlan:
    """Check what is to be searched; trains and writes nothing.

    Parameters
    ----------
    suite, scenario
        The pair: a scenario of two tasks of the suite, which may be left out where the suite has
        only one.
    settings
        How to search.
    options
        Model, data, limit, epochs, precision, corpus, device, plug-ins, and the folder, by default
        ``results/SUITE-search/SCENARIO``. The search sets methods, scenarios and seeds.
    changes
        Deprecated: single options by name.

    Raises
    ------
    ClbenchError
        If anything is wrong or unknown.
    """
    from clbench.models.checkpoint import load_backbone
    from clbench.models.groups import depth_of
    from clbench.suite.plan import make_plan
    from clbench.suite.plugins import load_plugins
    from clbench.suite.read import read_suite
    from clbench.suite.validation import stages_of

    if changes:
        warnings.warn(
            "make_search takes options as clbench.RunOptions(...)", DeprecationWarning, stacklevel=2
        )
        options = replace(options, **changes)
    load_plugins(options.plugins)
    read = read_suite(suite)
    split = "validation" if settings.paper_split else "tuning"
    changes = {"score_on": split, "curve_points": 0}
    protocol = read.file.protocol.model_copy(update=changes)
    read = replace(read, file=read.file.model_copy(update={"protocol": protocol}))
    plan = make_plan(
        read,
        replace(
            options,
            methods=["vanilla"],
            scenarios=None if scenario is None else [scenario],
            seeds=[settings.seed],
        ),
    )
    names = [spec.name for spec in plan.scenarios]
    if len(names) > 1:
        raise SettingsError(
            f"--scenario: a search is for one pair of tasks, not for {len(names)}. Give one of "
            f"{', '.join(names)}."
        )
    spec = plan.scenarios[0]
    if (count := stages_of(spec)) != 2:
        raise SettingsError(
            f"--scenario {spec.name}: has {count} tasks. The reward p_o + p_s is one of two."
        )
    if options.out is None:
        plan = replace(plan, out=Path("results") / f"{read.name}-search" / spec.name)
    depth = depth_of(load_backbone(plan.protocol.model, plan.protocol.revision))
    found = FoundOn(plan.protocol.lr, depth, settings.division)
    groups = usual_groups(depth) if settings.groups is None else settings.groups
    return SearchPlan(plan, settings, Space(found, groups, settings.lowest, settings.highest))


def search(
    plan: SearchPlan,
    *,
    place: Resources = Resources(),  # noqa: B008 - it cannot be changed
    listener: SearchListener | None = None,
) -> Found:
    """Search, or go on with it, and write what was found.

    Parameters
    ----------
    plan
        From `make_search`.
    place
        Where trials are trained, and how many at a time.
    listener
        Is told how it goes on.

    Raises
    ------
    SearchError
        If no trial came to its end, or the first all failed.
    ClbenchError
        If the folder is in use or holds another search, or Ray cannot be reached.
    """
    told: SearchListener = listener or _Silent()
    folder = SearchFolder(plan.run.out)
    with folder.lock():
        folder.check(plan.recipe())
        past = folder.read()
        done = sum(trial.status != "running" for trial in past)
        pending = max(0, plan.settings.trials - done)
        try:
            if pending:
                _tune(plan, place, told, folder, past, pending)
        finally:
            # Also when it was stopped: what is there already is worth having.
            trials = folder.read()
            with suppress(SearchError):
                found = outcome(trials, plan.space, plan.split)
                write_outcome(folder.path, found, plan.run.scenarios[0].name)
        return outcome(trials, plan.space, plan.split)


def _doubts(plan: SearchPlan, epochs: int, scored: Sequence[tuple[str, int]]) -> list[str]:
    """What a user should know before the time is spent."""
    found = [
        f"{name}: {rows} rows to be rewarded on, so a reward moves in steps of {1 / rows:.3f} and "
        "the best of many trials is mostly luck. Raise --limit."
        for name, rows in scored
        if rows < FEW_ROWS
    ]
    halving = plan.settings.halving
    if halving is not None and not halving.milestones(epochs):
        found.append(
            f"--grace {halving.grace}: a trial has {epochs} epochs, so none is stopped early."
        )
    return found


def _tune(
    plan: SearchPlan,
    place: Resources,
    told: SearchListener,
    folder: SearchFolder,
    past: Sequence[TrialRecord],
    pending: int,
) -> None:
    import clbench
    from clbench.evaluation.cell_runner import start_model
    from clbench.evaluation.prepare import ScenarioPreparer
    from clbench.evaluation.resources import cell_resources, connected
    from clbench.search.objective import Pair, try_rates
    from clbench.search.recorder import Recorder
    from clbench.search.tuning import Tuning, tune
    from clbench.training.device import resolve_device

    run, settings, space = plan.run, plan.settings, plan.space
    device = resolve_device(run.device if place.address is None else "auto")
    builder = ScenarioPreparer(
        run.protocol,
        data=run.data,
        base=run.base,
        own=run.suite.file.task,
        device=device,
        saved=None,
    )
    cell = run.cells[0]
    scene = builder.prepare(cell.scenario)
    sizes = [(task.name, len(task.rows)) for task in scene.train]
    lengths = [run.protocol.stage_length(*size) for size in sizes]
    epochs = sum(-(-steps // in_epoch) for steps, in_epoch in lengths)
    model = start_model(cell, scene)

    def changed(trial: TrialRecord) -> None:
        folder.write(trial)
        if trial.status != "running":
            told.trial_ended(trial)

    with connected(place) as ray:
        needs = cell_resources(ray, place, run.device)
        folder.begin(plan.recipe(), plan.described())
        recorder = Recorder(past, epochs, settings.halving, changed)
        told.started(settings.trials, pending, epochs)
        for text in _doubts(plan, epochs, [(task.name, len(task.rows)) for task in scene.scored]):
            told.note(text)
        pair = Pair(
            plan=replace(run, cells=(), plugins=(), out=run.out.resolve()),
            cell=cell,
            scene=scene,
            model=model,
            settings={"division": space.found.division},
            threads=needs.threads,
            version=clbench.__version__,
        )
        workers = place.workers if place.workers or place.address else 1
        tuning = Tuning(
            space,
            epochs,
            pending,
            settings.searcher,
            settings.halving,
            settings.seed,
            settings.time_limit,
        )
        try:
            tune(try_rates, pair, tuning, past, recorder, needs, workers)
        finally:
            recorder.close()
    if recorder.hopeless:
        raise SearchError(
            f"the first {len(recorder.failures)} trials failed, so the others would. The last: "
            f"{recorder.failures[-1]}"
        )
