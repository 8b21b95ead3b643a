"""Tune every method alike: the same number of trials over its own sweep, on held-out rows.

A trial is a baseline with other settings, and its cells are ordinary cells of a run whose scores
come from the tuning split. Interrupted cells, workers, stages that methods share, conflicts and
reports are therefore those of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clbench.core.errors import RunFolderError, SettingsError, describe_errors, join_names
from clbench.core.files import locked, read_file, write_atomically
from clbench.results.cell import CellResult
from clbench.results.store import Store
from clbench.runner.run_state import RunState, read_run_state
from clbench.search.study import ROUNDS, Study, TuneSettings
from clbench.suite.baselines import Sweep
from clbench.suite.options import RunOptions
from clbench.suite.plan import Plan, make_plan, validate
from clbench.suite.plugins import load_plugins
from clbench.suite.question import Question
from clbench.suite.read import read_suite
from clbench.suite.sweep import axes, count_points

GENERATED = "# Written by clbench tune, which overwrites it when it runs again: edit a copy."
"""First line of the file of a tuned baseline."""


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


class _Trials(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    searcher: str
    sweep: Sweep
    proposals: list[dict[str, Any]]


class _TuneFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: Literal["clbench-tune"] = "clbench-tune"
    schema_version: Annotated[int, Field(ge=1, le=1)] = 1
    methods: dict[str, _Trials] = {}


def make_tuning(
    suite: str | Path,
    settings: TuneSettings = TuneSettings(),  # noqa: B008 - immutable
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
    load_plugins(options.plugins)
    source = read_suite(suite)
    if common := sorted({*source.file.seeds} & {*settings.seeds}):
        raise SettingsError(
            f"--seeds: the suite reports {join_names(map(str, common))}. Choose other seeds to "
            "tune on."
        )
    options.choose_scenarios(source)  # so that errors give the name of the suite
    protocol = source.file.protocol.model_copy(
        update={"score_on": "tuning", "curve_points": 0, "probe_rows": None}
    )
    changes = {"protocol": protocol, "name": f"{source.name}-tune", "question": Question()}
    file = source.file.model_copy(update=changes)
    out = options.out or Path("results") / file.name
    options = replace(options, seeds=settings.seeds, looks=(), references=False, out=out)
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
    if not (plan.out / "tune.json").exists():
        for name in names:
            if (path := plan.out / f"{name}.toml").exists():
                raise RunFolderError(f"{path} would be overwritten. Choose another --out.")
    read_studies(plan)
    return plan


def trials_by_method(plan: TunePlan) -> dict[str, int]:
    """Return how many trials each method has at the end, unless its minutes are over before."""
    settings = plan.settings
    return {
        baseline.name: int(
            min(settings.trials, count_points(baseline, keep_rate=settings.keep_rate))
        )
        for baseline in plan.first.baselines
    }


def tuning_rounds(plan: TunePlan) -> Iterator[RunState]:
    """Yield the state of each round of trials, to be run before the next one is asked for.

    Trials of an earlier session come first. The proposals are in ``tune.json`` before a trial
    starts. A failed cell runs once a session.

    Raises
    ------
    RunFolderError
        If the folder holds something else.
    """
    trials, started = plan.settings.trials, set[str]()
    size, studies = -(-trials // ROUNDS), read_studies(plan)
    while True:
        variants = [point for study in studies for point in study.variants()[:trials]]
        if variants:
            state = plan.state(make_plan(plan.first.suite, replace(plan.options, methods=variants)))
            pending = tuple(cell for cell in state.pending if cell.key not in started)
            started |= {cell.key for cell in pending}
            yield replace(state, pending=pending)
        _read_trials(plan, studies)
        is_open = [study for study in studies if _is_open(study)]
        if not is_open:
            break
        for study in is_open:
            study.propose(min(size, trials - len(study.proposals)))
        file = _read_file(plan)
        methods = {study.baseline.name: _trials_of(study) for study in is_open}
        file = file.model_copy(update={"methods": {**file.methods, **methods}})
        with locked(plan.out, marker=plan.out / "tune.json"):
            write_atomically(plan.out / "tune.json", file.model_dump_json(indent=1) + "\n")


def read_studies(plan: TunePlan) -> list[Study]:
    """Return the studies of a tuning with their proposals and finished trials.

    Raises a RunFolderError if the trials in the folder come from another sweep or searcher.
    """
    file, studies = _read_file(plan), []
    for baseline in plan.first.baselines:
        study = Study(baseline, plan.settings, plan.first.protocol)
        if before := file.methods.get(baseline.name):
            new, problem = _trials_of(study), None
            swept = axes(baseline, keep_rate=plan.settings.keep_rate)
            if before.searcher != new.searcher:
                problem = f"come from --searcher {before.searcher}"
            elif before.sweep != new.sweep:
                problem = "come from another sweep"
            elif not all(
                key in swept and value in swept[key]
                for proposal in before.proposals
                for key, value in proposal.items()
            ):
                problem = "have settings outside the sweep"
            if problem:
                raise RunFolderError(
                    f"{plan.out / 'tune.json'}: the trials of {baseline.name} {problem}. Choose "
                    "another --out."
                )
            study.proposals = before.proposals
        studies.append(study)
    _read_trials(plan, studies)
    return studies


def write_tuned(plan: TunePlan, studies: Sequence[Study]) -> list[Path]:
    """Write a baseline file for each study that has a result; return their paths."""
    paths = []
    for study in studies:
        if study.has_result:
            paths.append(plan.out / f"{study.baseline.name}.toml")
            tuned = study.tuned(" ".join(plan.command), plan.scenarios)
            write_atomically(paths[-1], f"{GENERATED}\n{tuned.to_toml()}")
    return paths


def _read_trials(plan: TunePlan, studies: Sequence[Study]) -> None:
    by_name: dict[str, list[CellResult]] = {}
    for cell in Store(plan.out).read().cells:
        by_name.setdefault(cell.baseline, []).append(cell)
    for study in studies:
        study.read(by_name, plan.scenarios)


def _is_open(study: Study) -> bool:
    settings = study.settings
    seconds = math.inf if settings.minutes is None else 60.0 * settings.minutes
    spent = sum(trial.seconds for trial in study.trials)
    return len(study.proposals) < settings.trials and spent < seconds and not study.is_exhausted


def _trials_of(study: Study) -> _Trials:
    return _Trials(
        searcher=study.settings.searcher,
        sweep=axes(study.baseline, keep_rate=study.settings.keep_rate),
        proposals=study.proposals,
    )


def _read_file(plan: TunePlan) -> _TuneFile:
    """Return the content of ``tune.json``, empty for a new folder."""
    path = plan.out / "tune.json"
    try:
        return _TuneFile.model_validate_json(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return _TuneFile()
    except (OSError, ValidationError) as error:
        reason = describe_errors(error)[0] if isinstance(error, ValidationError) else error.strerror
        raise RunFolderError(f"{path} cannot be read: {reason}. Choose another --out.") from error
