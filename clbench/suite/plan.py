"""From a suite and the options of a command to the cells that are to be run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clbench.errors import DataError, SettingsError, UnknownNameError
from clbench.messages import describe_missing
from clbench.suite.baselines import Baseline, read_baseline, vary
from clbench.suite.command import command_of
from clbench.suite.faults import nearest, quoted, raise_faults, shown
from clbench.suite.identity import Identities
from clbench.suite.options import check_device, choose_scenarios, choose_seeds, override
from clbench.suite.plugins import Plugin, load_plugins
from clbench.suite.read import Suite
from clbench.suite.schema import ScenarioSpec
from clbench.suite.validation import check_methods, check_shifts, stages_of
from clbench.training.protocol import BY_TASK, Protocol


@dataclass(frozen=True, eq=False)
class Cell:
    """One scenario × baseline × seed.

    Attributes
    ----------
    scenario, baseline, seed, protocol
        What is trained on, how, with which seed.
    reference_of
        None for an ordinary cell; j for the single-task reference of task j (0-based).
    recipe
        Everything that decides the scores, as plain JSON values, by section; the
        fingerprint is its digest.
    """

    scenario: ScenarioSpec
    baseline: Baseline
    seed: int
    protocol: Protocol
    reference_of: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> str:
        """Name for files, unique in a run: ``sst2-mrpc--vanilla--seed0``."""
        return f"{self.scenario.name}--{self.baseline.name}--seed{self.seed}"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of `recipe`; cells with equal ones have equal scores on one machine."""
        text = json.dumps(self.recipe, sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class Plan:
    """All cells of a run, in the order in which they are run.

    Attributes
    ----------
    suite
        The file that it comes from.
    cells
        Scenario by scenario, in each seed by seed, in each method by method, references
        last: cells that share a first stage follow one another.
    out
        The run's folder.
    data
        Folder with a mirror of the hub's GLUE, or None.
    device
        ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
    plugins
        Plug-in files that were loaded.
    base
        Folder that relative paths of the suite start from.
    protocol
        The suite's with the command's options.
    command
        Words of the command that makes the same plan.
    """

    suite: Suite
    cells: tuple[Cell, ...]
    out: Path
    data: Path | None
    device: str
    plugins: tuple[Plugin, ...]
    base: Path
    protocol: Protocol
    command: tuple[str, ...]

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """The ordinary ones, in order, each once."""
        found = {c.baseline.name: c.baseline for c in self.cells if c.reference_of is None}
        return tuple(found.values())

    @property
    def scenarios(self) -> tuple[ScenarioSpec, ...]:
        """Those that are run, in order, each once."""
        return tuple({cell.scenario.name: cell.scenario for cell in self.cells}.values())

    def resolved(self) -> dict[str, Any]:
        """The suite as it is run, options of the command included, as plain JSON values."""
        file = self.suite.file
        return {
            "name": file.name,
            "description": file.description,
            "commands": [list(self.command)],
            "methods": [baseline.name for baseline in self.baselines],
            "seeds": list(dict.fromkeys(cell.seed for cell in self.cells)),
            "references": any(cell.reference_of is not None for cell in self.cells),
            "plugins": {plugin.path.name: plugin.digest for plugin in self.plugins},
            "protocol": self.protocol.model_dump(mode="json"),
            "task": {name: spec.model_dump(mode="json") for name, spec in file.task.items()},
            "scenario": [scenario.model_dump(mode="json") for scenario in self.scenarios],
            "baseline": {
                baseline.name: {
                    "method": baseline.method,
                    "settings": dict(baseline.settings),
                    "sources": dict(baseline.sources),
                }
                for baseline in self.baselines
            },
        }


def make_plan(
    suite: Suite,
    *,
    methods: Sequence[str | Baseline] | None = None,
    scenarios: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    model: str | None = None,
    data: str | Path | None = None,
    limit: int | None = None,
    epochs: int | None = None,
    precision: str | None = None,
    corpus: str | Path | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
    references: bool = False,
) -> Plan:
    """Expand a suite into cells. Reads files for their digests; loads no model and no rows.

    Parameters
    ----------
    suite
        From `read_suite`.
    methods
        Instead of the suite's: as there, its variants among them, with relative paths from the
        working directory.
    scenarios
        Shell patterns; a scenario that matches one of them is run. None runs all.
    seeds, model, limit, epochs, precision, corpus
        Instead of the suite's. `epochs` also replaces the suite's epochs and steps of
        single tasks.
    data
        Folder with a mirror of the hub's GLUE.
    device
        Where to train.
    out
        The run's folder; by default ``results/<name of the suite>``.
    plugins
        Python files to import first.
    references
        Also train the last task of each scenario alone, for intransigence.

    Raises
    ------
    ClbenchError
        If any option, name, plug-in, baseline file, model or task is wrong; unknown names in
        the suite file are told together.
    """
    given = {
        "model": model, "data": data, "corpus": corpus, "methods": methods,
        "scenarios": scenarios, "seeds": seeds, "limit": limit, "epochs": epochs,
        "precision": precision, "device": device, "plugins": plugins, "references": references,
    }  # fmt: skip
    loaded = load_plugins(plugins)
    check_device(device)
    mirror = _data_folder(data)
    protocol = override(
        suite, model=model, limit=limit, epochs=epochs, precision=precision, corpus=corpus
    )
    chosen = choose_scenarios(suite, scenarios)
    seed_list = choose_seeds(suite, seeds)
    faults = _unknown_names(suite, chosen)
    baselines = _baselines(suite, methods, faults)
    raise_faults(suite.path, faults)
    if references:
        # How many tasks a scenario has is the shift's to say, so its settings must be right.
        check_shifts(suite, chosen)
    identities = Identities(protocol, data=mirror, base=suite.base, own=suite.file.task)
    cells = []
    for scenario in chosen:
        shared = identities.recipe(scenario)
        extra = _reference(scenario) if references else None
        for seed in seed_list:
            wanted: list[tuple[Baseline, int | None]] = [(b, None) for b in baselines]
            if extra is not None:
                wanted.append(extra)
            cells += [_cell(scenario, b, seed, protocol, task, shared) for b, task in wanted]
    folder = Path("results") / suite.name if out is None else _folder("--out", out)
    command = command_of(suite, given)
    return Plan(suite, tuple(cells), folder, mirror, device, loaded, suite.base, protocol, command)


def validate(plan: Plan, cells: Sequence[Cell] | None = None) -> None:
    """Check the settings of methods and shifts by constructing them, and with the protocol.

    It may import what they need, so give it the cells that are really to be run.

    Raises
    ------
    SuiteError
        Every fault of the suite file, or of the first baseline file with faults, at once.
    SettingsError, PluginError
        For a method or shift that does not come from a file, or does not fit the protocol.
    """
    wanted = plan.cells if cells is None else cells
    check_shifts(plan.suite, {cell.scenario.name: cell.scenario for cell in wanted}.values())
    baselines = {cell.baseline.name: cell.baseline for cell in wanted}
    check_methods(baselines.values(), plan.protocol)


def _cell(
    scenario: ScenarioSpec,
    baseline: Baseline,
    seed: int,
    protocol: Protocol,
    reference_of: int | None,
    shared: Mapping[str, Any],
) -> Cell:
    recipe = {
        **shared,
        "method": {
            "name": baseline.method,
            "settings": dict(baseline.settings),
            "source": baseline.digest,
        },
        "seed": seed,
        "reference_of": reference_of,
    }
    return Cell(scenario, baseline, seed, protocol, reference_of, recipe)


def _folder(option: str, path: str | Path) -> Path:
    if not str(path):
        raise SettingsError(f"{option}: is empty. Name a folder, or leave the option out.")
    return Path(path).expanduser()


def _data_folder(data: str | Path | None) -> Path | None:
    if data is None:
        return None
    folder = _folder("--data", data)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.is_file() else describe_missing(folder, "folder")
        raise DataError(f"--data {data}: {what}. Give the folder that holds glue/.")
    return folder.resolve()


def _unknown_names(suite: Suite, chosen: Sequence[ScenarioSpec]) -> list[str]:
    """Faults of shifts and tasks that nobody registered, and of tables that hide a task."""
    from clbench.shifts.base import SHIFTS
    from clbench.tasks.load import known_metrics
    from clbench.tasks.registry import TASKS

    own = suite.file.task
    plugin = " One of your own needs --plugin FILE."
    faults = [
        f"[task.{quoted(name)}]: there is a task of that name already. Give yours another."
        for name in own
        if name in TASKS
    ]
    for key in BY_TASK:
        # A part of a task, such as glue/sst2[short], may have a length of its own.
        named = {task: task.partition("[")[0] for task in getattr(suite.file.protocol, key)}
        faults += [
            f"[protocol] {key}.{quoted(task)}: there is no task {whole!r}."
            f"{nearest(whole, [*own, *TASKS], 'clbench list tasks')}"
            for task, whole in named.items()
            if whole not in own and whole not in TASKS
        ]
    for task, metric in suite.file.protocol.task_metric.items():
        known = known_metrics(task.partition("[")[0], own)
        if known and metric not in known:
            faults.append(
                f"[protocol] task_metric.{quoted(task)}: {metric!r} is none of its metrics. "
                f"Take {' or '.join(known)}."
            )
    for scenario in chosen:
        place = f"[[scenario]] {suite.scenario_names.index(scenario.name) + 1} {scenario.name!r}"
        if scenario.shift not in SHIFTS:
            faults.append(
                f"{place} shift: there is no shift {scenario.shift!r}."
                f"{nearest(scenario.shift, SHIFTS, 'clbench list shifts')}{plugin}"
            )
        for task in scenario.task_names:
            if task not in own and task not in TASKS:
                key = "task" if scenario.settings.get("task") == task else "tasks"
                faults.append(
                    f"{place} {key}: there is no task {task!r}."
                    f"{nearest(task, [*own, *TASKS], 'clbench list tasks')}{plugin}"
                )
    return faults


def _baselines(
    suite: Suite, methods: Sequence[str | Baseline] | None, faults: list[str]
) -> list[Baseline]:
    """The baselines; unknown names in the suite file are added to `faults` instead of raised."""
    found: list[Baseline] = []
    for number, method in enumerate(suite.file.methods if methods is None else methods, 1):
        try:
            if not isinstance(method, str):
                found.append(method)
            elif method in (tables := suite.file.baseline):
                found.append(vary(method, tables[method], suite.path))
            else:
                base = suite.base if methods is None else None
                found.append(read_baseline(method, base=base))
        except UnknownNameError as fault:
            if methods is not None:
                raise
            text = str(fault)
            faults.append(f"methods item {number}: {text[:1].lower()}{text[1:]}")
    names: dict[str, Baseline] = {}
    for baseline in found:
        other = names.setdefault(baseline.name, baseline)
        if other is not baseline:
            where = f"{shown(suite.path)}, methods" if methods is None else "--methods"
            places = [shown(b.path) if b.path else b.method for b in (other, baseline)]
            twice = places[0] == places[1]
            raise UnknownNameError(
                f"{where}: two baselines are called {baseline.name!r}: "
                + ("the same one twice. " if twice else f"{places[0]} and {places[1]}. ")
                + ("Remove one." if twice else "Give one of them another `name`.")
            )
    if not names and not faults:
        raise UnknownNameError("--methods: names no method. Give at least one, such as vanilla.")
    return found


def _reference(scenario: ScenarioSpec) -> tuple[Baseline, int]:
    """The baseline of a single-task reference, and which task it is trained on: the last."""
    last = stages_of(scenario) - 1
    vanilla = read_baseline("vanilla")
    named = replace(
        vanilla,
        name=f"reference{last}",
        description=f"{vanilla.name} on task {last} of the scenario alone.",
    )
    return named, last
