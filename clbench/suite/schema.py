"""The tables of a suite file."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from clbench.core.errors import format_value
from clbench.core.registry import LONGEST_NAME, NAME, Seed, check_name, is_name
from clbench.shifts.base import SHIFTS
from clbench.suite.scores import SCORES
from clbench.tasks.spec import OwnTaskTable
from clbench.training.protocol import Protocol

Name = Annotated[str, Field(min_length=1)]

FEWEST = 3
"""Fewest common seeds for a verdict."""
MOST_SEEDS = 1000
"""Most seeds of a run, and most that are ever advised."""
LOOKS = (5, 10, 20)
"""Default numbers of seeds after which a run that adds seeds is looked at."""
UNTIL_SETTLED = "until-settled"
"""Value of ``--seeds`` for a run that adds seeds."""
MEAN = "mean over scenarios"
"""What stands for the scenario of a comparison of means over scenarios."""

CellName = Annotated[str, AfterValidator(check_name)]
Patterns = Annotated[list[Name], Field(min_length=1)]


def _has_step(name: str) -> str:
    """Return the name of a score that a question may ask for."""
    names = [repr(score.name) for score in SCORES if score.step]
    if repr(name) not in names:
        expected = {"expected": f"{', '.join(names[:-1])} or {names[-1]}"}
        raise PydanticCustomError("literal_error", "Input should be {expected}", expected)
    return name


def _distinct(scores: list[str]) -> list[str]:
    if len({*scores}) < len(scores):
        raise ValueError("must not name a score twice")
    return scores


ScoreName = Annotated[str, AfterValidator(_has_step)]


class Question(BaseModel):
    """The ``[question]`` table of a suite file.

    By default p_o and p_s against vanilla, or the average if all scenarios are longer sequences.

    Attributes
    ----------
    reference
        Baseline that the others are compared with.
    scores
        Scores that it covers.
    margin
        Largest difference that does not matter.
    methods, scenarios
        Patterns of the baselines and scenarios that it covers, such as ``sst2*``.
    mean_over_scenarios
        Whether each method gets one verdict per score, on its mean over these scenarios seed by
        seed, in place of one on each scenario.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference: Name = "vanilla"
    scores: Annotated[list[ScoreName], Field(min_length=1), AfterValidator(_distinct)] = [
        *("p_o", "p_s"),
    ]
    margin: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    methods: Patterns = ["*"]
    scenarios: Patterns = ["*"]
    mean_over_scenarios: bool = False

    def asks(self, scenario: str, score: str, method: str) -> bool:
        """Whether a comparison is one of the question's; `scenario` may be `MEAN`."""
        if self.mean_over_scenarios != (scenario == MEAN):
            return False
        return (
            score in self.scores
            and method != self.reference
            and any(fnmatchcase(method, pattern) for pattern in self.methods)
            and (scenario == MEAN or self.covers(scenario))
        )

    def covers(self, scenario: str) -> bool:
        """Whether an answer depends on a scenario."""
        return any(fnmatchcase(scenario, pattern) for pattern in self.scenarios)

    def depends_on(self, scenario: str, score: str, method: str) -> bool:
        """Whether an answer depends on a method's score on a scenario."""
        unit = MEAN if self.mean_over_scenarios else scenario
        return self.covers(scenario) and self.asks(unit, score, method)


NOT_STAGES = {"domain-incremental": "classes", "class-incremental": "tasks"}
"""The setting of a shift with a list that does not give its stages."""


class ScenarioSpec(BaseModel):
    """One ``[[scenario]]`` table.

    Attributes
    ----------
    name
        Unique in its suite; see `derived_name` for the default.
    shift, settings
        Name of a registered shift, and its settings: every other key of the table.
    note
        Shown in results and reports.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(validate_default=True)] = ""
    shift: Name
    settings: dict[str, Any] = {}
    note: str = ""

    @field_validator("name")
    @classmethod
    def _usable(cls, name: str) -> str:
        if not name:
            raise ValueError("has no `name`, and no valid `task` or `tasks` to derive one from")
        return check_name(name)

    @property
    def series(self) -> str:
        """The name without that of its order: what random streams of the scenario are called by.

        Orders of one sequence that begin alike then train alike.
        """
        order = self.settings.get("order")
        return self.name.removesuffix(f"-{order}") if isinstance(order, str) else self.name

    @property
    def is_sequence(self) -> bool:
        """Whether the settings give more than two tasks, parts or steps."""
        numbers = [self.settings.get(key) for key in ("k", "steps")]
        keys = {"tasks", "classes", "domains"} - {NOT_STAGES.get(self.shift)}
        lists = [self.settings.get(key) for key in keys]
        sizes = [len(value) for value in lists if isinstance(value, list | dict)]
        return max([2, *sizes, *(n for n in numbers if isinstance(n, int))]) > 2

    @property
    def task_names(self) -> tuple[str, ...]:
        """Tasks in the settings ``task`` and ``tasks``, in order, each once."""
        task, tasks = self.settings.get("task"), self.settings.get("tasks")
        names = [task, *(tasks if isinstance(tasks, list) else ())]
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts in the settings, keys of tables included, each once."""
        return tuple(dict.fromkeys(_texts(list(self.settings.values()))))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else [*value, *value.values()]:
            yield from _texts(item)


class VariantTable(BaseModel):
    """One ``[baseline.NAME]`` table: a variant of the baseline `of` with other settings.

    `of` is a name as in ``methods``. `sources` says where the new values come from. `description`
    is by default the original's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: Name
    settings: dict[str, Any] = {}
    sources: dict[str, Name] = {}
    description: str = ""


def _check_names(tables: dict[str, OwnTaskTable]) -> dict[str, OwnTaskTable]:
    for name in tables:
        if "[" in name or "]" in name:
            raise ValueError(f"{name!r} cannot be a name: brackets mark the parts of a task")
        if not is_name(name):
            raise ValueError(f"a name must be {NAME}, got {format_value(name)}")
    return tables


OwnTasks = Annotated[dict[str, OwnTaskTable], AfterValidator(_check_names)]
"""Tasks that a file defines, by name."""


class TaskFile(BaseModel):
    """A file with nothing but tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: OwnTasks = {}


class SuiteFile(BaseModel):
    """A suite file.

    Attributes
    ----------
    name, description
        Name of the suite and its run folder, by default the file's name without suffix; one line
        for lists.
    methods, baseline
        Baselines to run: names of baseline files or methods, paths, or ``module:Class``; variants
        of baselines, by the names that `methods` may use.
    seeds
        One cell each; unique.
    references
        Whether to also train each scenario's last task alone, for intransigence; or ``all`` tasks
        but the first, for plasticity, too.
    question
        Which comparisons share one error rate and get a verdict.
    protocol
        How every cell is trained and scored.
    task, scenario
        Tasks that the suite defines, by name; scenarios, in order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: CellName
    description: str = ""
    methods: Annotated[list[Name], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    references: bool | Literal["all"] = True
    question: Question = Question()
    protocol: Protocol = Protocol()
    baseline: dict[CellName, VariantTable] = {}
    task: OwnTasks = {}
    scenario: Annotated[list[ScenarioSpec], Field(min_length=1)]

    @property
    def asked(self) -> Question:
        """The question; about ``average`` if it names no scores and all scenarios are sequences."""
        if "scores" in self.question.model_fields_set:
            return self.question
        is_long = all(scenario.is_sequence for scenario in self.scenario)
        return self.question.model_copy(update={"scores": ["average"]} if is_long else {})


def derived_name(shift: Any, settings: Mapping[str, Any]) -> str | None:
    """Return the default name of a scenario, or None without names of tasks.

    The name joins the tasks and the shift's `short_name`, or its name if that is None; "-" stands
    for characters that names must not have.

    Examples
    --------
    >>> derived_name("dataset", {"tasks": ["glue/sst2", "glue/mrpc"]})
    'sst2-mrpc'
    >>> derived_name("sentence-length", {"task": "glue/qnli", "unit": "words"})
    'qnli-length'
    """
    tasks = settings.get("tasks", settings.get("task"))
    names = tasks if isinstance(tasks, list) else [tasks]
    if not names or not all(isinstance(name, str) for name in names):
        return None
    parts = [name.rpartition("/")[2] for name in names]
    if isinstance(shift, str):
        label = SHIFTS.get(shift).short_name if shift in SHIFTS else None
        parts.append(shift.rpartition("/")[2] if label is None else label)
    name = re.sub(r"[^A-Za-z0-9._+]+", "-", "-".join(part for part in parts if part))
    return name.lstrip("-._+")[:LONGEST_NAME] or None
