"""The plan of a run: the cells of a suite under the options of a command."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self, TypeVar

from clbench.core import errors
from clbench.core.files import user_path
from clbench.models.locate import display_name
from clbench.models.pooling import declared_pooling, pooling_notes
from clbench.suite.baselines import REFERENCE, RESERVED, Baseline, read_baseline, read_variant
from clbench.suite.options import RunOptions
from clbench.suite.plugins import Plugin, load_plugins
from clbench.suite.read import Suite, raise_errors
from clbench.suite.recipe import (
    fingerprint,
    json_sections,
    own_recipe,
    protocol_of,
    shared_recipes,
)
from clbench.suite.schema import Question, ScenarioSpec
from clbench.suite.scores import SCORE
from clbench.suite.sweeps import dial_points
from clbench.suite.validation import check_methods, check_shifts, stages_of, unknown_names
from clbench.training.protocol import Protocol

Named = TypeVar("Named", Baseline, ScenarioSpec)


@dataclass(frozen=True, eq=False)
class Cell:
    """One scenario × baseline × seed.

    Attributes
    ----------
    scenario, baseline, seed, protocol
        What to train on, how, and with which seed.
    reference_of
        None for an ordinary cell; j for the single-task reference of task j (0-based).
    recipe
        Everything that decides the scores, as plain JSON values by section.
    fingerprint
        Digest of `recipe`; equal fingerprints mean equal scores on one machine.
    notes
        Notes on the model for its result.
    """

    scenario: ScenarioSpec
    baseline: Baseline
    seed: int
    protocol: Protocol
    reference_of: int | None
    recipe: Mapping[str, Any] = field(repr=False)
    fingerprint: str
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name of the cell's file, unique in a run: ``sst2-mrpc--vanilla--seed0``."""
        return f"{self.scenario.name}--{self.baseline.name}--seed{self.seed}"


@dataclass(frozen=True, eq=False)
class Plan:
    """All cells of a run, in the order in which they run, its folder and its options.

    Attributes
    ----------
    cells
        Sorted by scenario, then seed, then method, references last: cells that share a first
        stage are neighbours.
    data
        Folder with copies of hub repositories, such as ``glue``, or None.
    protocol
        The suite's protocol with the command's options applied.
    command
        Words of a command that makes the same plan.
    looks
        Numbers of seeds after which a run that adds seeds is looked at, or none.
    keep_stages
        Whether the last stage of each cell stays in the folder, for longer sequences.
    """

    suite: Suite
    cells: tuple[Cell, ...]
    out: Path
    data: Path | None
    device: str
    plugins: tuple[Plugin, ...]
    protocol: Protocol
    command: tuple[str, ...]
    looks: tuple[int, ...] = ()
    keep_stages: bool = False

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """The baselines in order, without references."""
        return once(cell.baseline for cell in self.cells if cell.reference_of is None)

    @property
    def question(self) -> Question:
        """The suite's primary question."""
        return self.suite.file.asked

    @property
    def scenarios(self) -> tuple[ScenarioSpec, ...]:
        """The scenarios in order."""
        return once(cell.scenario for cell in self.cells)

    @property
    def steps(self) -> list[Self]:
        """The plan of each look of a run that adds seeds; of any other run, the plan itself."""
        cells = [tuple(c for c in self.cells if c.seed < look) for look in self.looks]
        return [replace(self, cells=some) for some in cells] or [self]

    def resolved(self) -> dict[str, Any]:
        """Return the suite with the command's options applied, as plain JSON values."""
        file = self.suite.file
        alone = {(c.scenario.name, c.reference_of) for c in self.cells if c.reference_of}
        has_all = len(alone) > len({name for name, _ in alone})
        return {
            "name": file.name,
            "description": file.description,
            "commands": [list(self.command)],
            "model_name": display_name(self.protocol.model, self.protocol.revision),
            "methods": [baseline.name for baseline in self.baselines],
            "seeds": list(dict.fromkeys(cell.seed for cell in self.cells)),
            "references": "all" if has_all else bool(alone),
            "plugins": {plugin.path.name: plugin.digest for plugin in self.plugins},
            **({"looks": [list(self.looks)]} if self.looks else {}),
            "questions": [self.question.model_dump(mode="json")],
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


def once(things: Iterable[Named]) -> tuple[Named, ...]:
    """Return baselines or scenarios in order, each name once."""
    return tuple({thing.name: thing for thing in things}.values())


def make_plan(suite: Suite, options: RunOptions = RunOptions()) -> Plan:  # noqa: B008 - immutable
    """Expand a suite into cells; reads files for their digests, but loads no model or rows.

    Raises a ClbenchError if anything is wrong; unknown names in the suite file are reported
    together.
    """
    plugins = load_plugins(options.plugins)
    data = options.data_folder()
    protocol, notes = _with_pooling(options.override(suite))
    if protocol.smoke:
        # With a name of its own, it has a folder of its own and mixes with no run of the suite.
        file = suite.file.model_copy(update={"name": f"{suite.name}-smoke"})
        suite = replace(suite, file=file)
    scenarios = options.choose_scenarios(suite)
    problems = unknown_names(suite, scenarios)
    baselines = _baselines(suite, options, problems)
    references = suite.file.references if options.references is None else options.references
    raise_errors(suite.path, problems)
    _check_scores(suite, protocol, references)
    _check_question(suite, options, baselines, scenarios)
    if references:
        # The settings of a shift decide how many tasks a scenario has.
        check_shifts(suite, scenarios)
    shared_recipe = shared_recipes(suite, protocol, data)
    given = range(options.looks[-1]) if isinstance(options.seeds, str) else options.seeds
    seeds = suite.file.seeds[: 1 if protocol.smoke else None] if given is None else given
    cells = []
    for scenario in scenarios:
        own_protocol = protocol_of(scenario, protocol)
        shared = shared_recipe(scenario, own_protocol)
        shared_text = json_sections(shared)
        methods: list[tuple[Baseline, int | None]] = [(baseline, None) for baseline in baselines]
        # Vanilla itself learns the first task alone.
        last = stages_of(scenario) - 1 if references else 0
        for task in range(1 if references == "all" else max(1, last), last + 1):
            reference = replace(read_baseline("vanilla"), name=f"reference{task}")
            methods.append((reference, task))
        for seed in seeds:
            for baseline, reference_of in methods:
                own = own_recipe(baseline, seed, reference_of)
                recipe = {**shared, **own}
                mark = fingerprint(shared_text | json_sections(own))
                rest = own_protocol, reference_of, recipe, mark, notes
                cells.append(Cell(scenario, baseline, seed, *rest))
    return Plan(
        suite=suite,
        cells=tuple(cells),
        out=user_path(options.out or Path("results") / suite.name, errors.named("out")),
        data=data,
        device=options.device,
        plugins=plugins,
        protocol=protocol,
        command=options.command(suite),
        looks=options.looks,
        keep_stages=options.keep_stages,
    )


def _check_question(
    suite: Suite, options: RunOptions, baselines: Sequence[Baseline], scenarios: Sequence[Any]
) -> None:
    """Raise a SuiteError if a question of the suite, or of a run with looks, compares nothing."""
    question = suite.file.asked
    names = [b.name for b in baselines if b.family in ("", b.name)]  # without points of sweeps
    is_whole = options.methods is options.scenarios is None
    patterns = {
        "methods": (question.methods, names),
        "scenarios": (question.scenarios, [scenario.name for scenario in scenarios]),
    }
    problems = [
        f"{key}: {pattern!r} matches none of {errors.join_names(known)}"
        for key, (given, known) in patterns.items()
        for pattern in given
        if is_whole and not any(fnmatchcase(name, pattern) for name in known)
    ]
    if options.methods is None and question.reference not in {"vanilla", *names}:
        reference = repr(question.reference)
        problems.append(f"reference: {reference} is none of the methods {errors.join_names(names)}")
    asked = question.reference in names and any(
        question.depends_on(scenario.name, score, name)
        for scenario in scenarios
        for score in question.scores
        for name in names
    )
    is_needed = options.looks or (is_whole and "question" in suite.file.model_fields_set)
    if is_needed and not asked and not problems:
        methods = errors.join_names(names)
        problems.append(f"compares no method with {question.reference!r}. Methods: {methods}")
    raise_errors(suite.path, [f"[question] {error}" for error in problems])


def _check_scores(suite: Suite, protocol: Protocol, references: bool | str) -> None:
    """Raise a SuiteError if the question asks for a score that the run will not have."""
    for name in suite.file.asked.scores:
        for need in SCORE[name].needs:
            if not need.is_met(protocol, references):
                raise errors.SuiteError(
                    f"{errors.display_path(suite.path)}: [question] scores: this run will not have "
                    f"{name!r}. {need.remedy}"
                )


def validate(plan: Plan, cells: Iterable[Cell]) -> None:
    """Check the settings of the cells' methods and shifts by constructing them.

    This may import what the methods need, so give it only the cells that will run. Raises the
    errors of `check_shifts` and `check_methods`.
    """
    cells = list(cells)
    check_shifts(plan.suite, once(cell.scenario for cell in cells))
    check_methods(once(cell.baseline for cell in cells), plan.protocol)


def _baselines(suite: Suite, options: RunOptions, problems: list[str]) -> list[Baseline]:
    """Return the baselines; unknown names in the suite file are appended to `problems`."""
    base = suite.base if options.methods is None else None
    baselines: list[Baseline] = []
    for number, method in enumerate(options.methods or suite.file.methods, 1):
        try:
            if not isinstance(method, str):
                baselines.append(method)
            elif method in suite.file.baseline:
                baselines.append(read_variant(method, suite.file.baseline[method], suite.path))
            else:
                baselines.append(read_baseline(method, base=base))
        except errors.UnknownNameError as error:
            if options.methods is not None:
                raise
            problems.append(f"methods item {number}: {error}")
    if options.sweep is not None:
        counts = options.sweep if isinstance(options.sweep, tuple) else (options.sweep,)
        baselines = [point for b in baselines for point in dial_points(b, *counts)]
    where = (
        errors.named("methods")
        if options.methods is not None
        else f"{errors.display_path(suite.path)}, methods"
    )
    by_name: dict[str, Baseline] = {}
    for baseline in baselines:
        if REFERENCE.fullmatch(baseline.name):
            raise errors.UnknownNameError(f"{where}: {baseline.name!r}: {RESERVED}. Rename it.")
        if (other := by_name.setdefault(baseline.name, baseline)) is not baseline:
            paths = [errors.display_path(b.path) for b in (other, baseline) if b.path]
            files = f" ({' and '.join(paths)})" if len({*paths}) == 2 else ""
            raise errors.UnknownNameError(
                f"{where}: {baseline.name!r} is given twice{files}. Remove or rename one."
            )
    return baselines


def _with_pooling(protocol: Protocol) -> tuple[Protocol, tuple[str, ...]]:
    """Return the protocol with the declared pooling, if the checkpoint is to choose, and notes."""
    if protocol.is_language_model or protocol.pooling != "auto":
        return protocol, ()
    model = protocol.model, protocol.revision
    update = {"pooling": declared} if (declared := declared_pooling(*model)) else {}
    return protocol.model_copy(update=update), pooling_notes(*model)
