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
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clbench.errors import RunFolderError, SettingsError, join_names
from clbench.evaluation.run_state import RunState, read_run_state
from clbench.files import read_file, user_path
from clbench.messages import describe_errors
from clbench.results.output_folder import locked, write_text
from clbench.results.store import Store
from clbench.search.search_folder import FAILED
from clbench.search.study import ROUNDS, Study, TuneSettings
from clbench.suite.baselines import Baseline
from clbench.suite.options import RunOptions
from clbench.suite.plan import make_plan, validate
from clbench.suite.plugins import load_plugins
from clbench.suite.read import Suite, read_suite

if TYPE_CHECKING:
    from clbench.results.cell import CellResult


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


class _TuneFile(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    format: Literal["clbench-tune"] = "clbench-tune"
    schema_version: Annotated[int, Field(ge=1, le=1)] = 1
    proposals: dict[str, list[dict[str, Any]]]


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
    Store(plan.out).check(file.name)
    validate(plan, plan.cells)
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
    paths, command = [], " ".join(plan.words[:3])
    for study in studies:
        if any(trial.score != FAILED for trial in study.trials):
            paths.append(plan.out / f"{study.baseline.name}.toml")
            tuned = study.tuned(command, plan.scenarios, plan.settings.seeds)
            write_text(paths[-1], tuned.to_toml())
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
