"""Plan and run a search of learning rates for a pair of tasks."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.core.errors import SearchError, SettingsError, count, join_names
from clbench.core.files import locked
from clbench.runner.resources import Resources
from clbench.search.outcome import SearchOutcome
from clbench.search.search_folder import SearchFolder, TrialRecord
from clbench.search.space import MAX_GROUPS, SearchOrigin, SearchSettings, SearchSpace
from clbench.suite.options import RunOptions

if TYPE_CHECKING:
    from clbench.suite.plan import Plan

FEW_ROWS = 100
"""Rows below which the reward is so coarse that the user is warned."""

QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the search
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
NOISY = ("ray.tune", "ray.air", "ray.train", "autogluon", "hyperopt")


class SearchListener:
    """Receives the progress of a search, in the searching process; the base ignores it."""

    def started(self, trials: int, pending: int, epochs: int) -> None:
        """Called once with the numbers of trials, pending trials, and epochs of a whole trial."""

    def trial_ended(self, trial: TrialRecord) -> None:
        """Called when a trial is complete, stopped or failed."""

    def note(self, text: str) -> None:
        """Called with a line for the user."""


@dataclass(frozen=True)
class SearchPlan:
    """The pair of tasks to search on, the settings, and the search space."""

    run: Plan  # of one cell of the pair, scored on the rows that give the rewards
    settings: SearchSettings
    space: SearchSpace

    @property
    def split(self) -> str:
        """Description of the rows that give the rewards."""
        if self.settings.paper_split:
            return "validation (the paper's choice: the split that is also reported)"
        share = self.run.protocol.tuning_fraction
        return f"tuning ({share:g} of the training rows, held out)"

    def recipe(self) -> dict[str, Any]:
        """Return everything that decides the trials and their scores, by section."""
        cell = {k: v for k, v in self.run.cells[0].recipe.items() if k != "method"}
        return {**cell, "search": self.settings.recipe(self.space, self.split)}


def make_search(
    suite: str | Path,
    scenario: str | None = None,
    settings: SearchSettings = SearchSettings(),  # noqa: B008 - immutable
    options: RunOptions = RunOptions(),  # noqa: B008 - immutable
    **changes: Any,
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
    changes
        Deprecated: single options by name.

    Raises
    ------
    ClbenchError
        If a name, setting or option is wrong.
    """
    from clbench.models.checkpoint import load_backbone
    from clbench.models.groups import depth_of
    from clbench.suite.plan import make_plan
    from clbench.suite.plugins import load_plugins
    from clbench.suite.question import Question
    from clbench.suite.read import read_suite
    from clbench.suite.validation import stages_of

    if changes:
        message = "make_search takes options as clbench.RunOptions(...)"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        options = replace(options, **changes)
    load_plugins(options.plugins)
    source = read_suite(suite)
    split = "validation" if settings.paper_split else "tuning"
    scoring = {"score_on": split, "curve_points": 0}
    protocol = source.file.protocol.model_copy(update=scoring)
    changes = {"protocol": protocol, "question": Question()}
    source = replace(source, file=source.file.model_copy(update=changes))
    scenarios = None if scenario is None else [scenario]
    cell = replace(
        options, methods=["vanilla"], scenarios=scenarios, seeds=[settings.seed], references=False
    )
    cell.choose_scenarios(source, "--scenario")  # so that a message names this option
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


def search(
    plan: SearchPlan,
    resources: Resources = Resources(),  # noqa: B008 - immutable
    *,
    listener: SearchListener | None = None,
    place: Resources | None = None,
) -> SearchOutcome:
    """Run or resume a search, and write its baseline files and figures.

    Parameters
    ----------
    plan
        From `make_search`.
    resources
        Where trials run, and how many at a time.
    listener
        Receives progress.
    place
        Deprecated name of `resources`.

    Raises
    ------
    ClbenchError
        A SearchError if no trial is complete or the first ones all fail; another one if the folder
        is in use or holds another search, or Ray cannot be reached.
    """
    if place is not None:
        warnings.warn("place is now called resources", DeprecationWarning, stacklevel=2)
        resources = place
    folder = SearchFolder(plan.run.out)
    folder.check(plan.recipe())
    with locked(folder.path, marker=folder.file):
        past = folder.read()
        pending = plan.settings.trials - sum(trial.status != "running" for trial in past)
        try:
            if pending > 0:
                _search(plan, resources, listener or SearchListener(), folder, past, pending)
        finally:
            # Also write the outcome of an interrupted search.
            with suppress(SearchError):
                outcome = SearchOutcome.of(folder.read(), plan.space, plan.split)
                outcome.write(folder.path, plan.run.scenarios[0].name)
    return SearchOutcome.of(folder.read(), plan.space, plan.split)


def _search(
    plan: SearchPlan,
    resources: Resources,
    listener: SearchListener,
    folder: SearchFolder,
    past: list[TrialRecord],
    pending: int,
) -> None:
    from clbench.runner.cell_runner import start_model
    from clbench.runner.prepare import ScenarioPreparer
    from clbench.runner.ray_worker import WorkerSetup
    from clbench.runner.resources import cell_resources, connected
    from clbench.runner.run_plan import versions
    from clbench.search.objective import TrialSetup, run_trial

    run, settings = plan.run, plan.settings
    device = resources.device_here(run.device)
    scenario = ScenarioPreparer.of(run, device).prepare(run.scenarios[0], settings.seed)
    lengths = [run.protocol.stage_length(task.name, len(task.rows)) for task in scenario.train]
    first, second = (-(-steps // epoch_steps) for steps, epoch_steps in lengths)

    def write(trial: TrialRecord) -> None:
        folder.write(trial)
        if trial.status != "running":
            listener.trial_ended(trial)

    with connected(resources) as ray, quiet_ray_tune():
        from clbench.search.ray_tune import TrialRecorder, run_trials

        cell = cell_resources(ray, resources, run.device)
        facts = {
            "suite": run.suite.name,
            "scenario": scenario.scenario.name,
            "tasks": list(run.scenarios[0].task_names),
            "model": run.protocol.model,
            "split": plan.split,
            "groups": plan.space.names,
            "versions": versions(),
        }
        folder.begin(plan.recipe(), facts)
        listener.started(settings.trials, pending, first + second)
        for data in scenario.scored:
            if (rows := len(data.rows)) < FEW_ROWS:
                listener.note(
                    f"{data.name}: rewards come from {rows} rows, so they move in steps of "
                    f"{1 / rows:.3f} and the best of many is mostly luck. Raise --limit."
                )
        if settings.scheduler == "asha" and settings.grace >= second:
            epochs = count(second, "epoch")
            listener.note(f"--grace {settings.grace}: no trial of {epochs} on D_s stops early.")
        setup = TrialSetup(
            plan=replace(run, plugins=(), out=run.out.resolve()),
            scenario=scenario,
            model=start_model(run.cells[0], scenario),
            division=plan.space.origin.division,
            worker=WorkerSetup.of(run, cell.threads),
        )
        recorder = TrialRecorder(settings, plan.space, (first, second), past, write)
        workers = resources.workers or (1 if resources.address is None else None)
        try:
            run_trials(run_trial, setup, pending, recorder, cell, workers)
        finally:
            recorder.close()
    if recorder.all_failed:
        raise SearchError(
            f"the first {len(recorder.failures)} trials failed, so the search has ended. Reason of "
            f"the last one: {recorder.failures[-1]}"
        )


@contextmanager
def quiet_ray_tune() -> Iterator[None]:
    """Silence Ray Tune and autogluon, whose output repeats the trial files."""
    environment = {name: os.environ.get(name) for name in QUIET}
    levels = {name: logging.getLogger(name).level for name in NOISY}
    os.environ.update(QUIET)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for name, value in environment.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
