"""What a suite file holds, as typed models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from clbench.tasks.spec import OwnTaskTable
from clbench.training.protocol import Protocol

NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+]|-(?!-))*")
Name = Annotated[str, Field(min_length=1)]


def check_name(name: str) -> str:
    """Return `name` if it fits a file name whose parts are joined by ``--``, else a ValueError."""
    if not NAME_PATTERN.fullmatch(name) or len(name) > 100:
        raise ValueError(
            "a name consists of at most 100 letters, digits, '.', '_', '+' and single '-', and "
            "starts with a letter or digit"
        )
    return name


class ScenarioSpec(BaseModel):
    """One ``[[scenario]]`` table.

    Attributes
    ----------
    name
        Unique in its suite; see `derived_name` for the default.
    shift, settings
        Name of a registered shift, and its settings: every other key of the table.
    note
        A remark that results and reports show.
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
    def task_names(self) -> tuple[str, ...]:
        """Tasks under the settings ``task`` and ``tasks``, in order, each once."""
        one, several = self.settings.get("task"), self.settings.get("tasks")
        names = [one, *(several if isinstance(several, list) else ())]
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


class VariantTable(BaseModel):
    """One ``[baseline.NAME]`` table: the baseline `of`, as in ``methods``, with other settings.

    `sources` says where the new values come from. `description` is by default the original's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: Name
    settings: dict[str, Any] = {}
    sources: dict[str, Name] = {}
    description: str = ""


class SuiteFile(BaseModel):
    """A suite file.

    Attributes
    ----------
    name, description
        Names the run's folder, by default that of the file without its suffix; a line for lists.
    methods, baseline
        Baselines: names of baseline files or methods, paths, or ``module:Class``; variants of
        them, by names for `methods`.
    seeds
        One cell for each; unique.
    protocol
        How every cell is trained and scored.
    task, scenario
        Own tasks, by name; what to train on, in order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str = ""
    methods: Annotated[list[Name], Field(min_length=1)]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1)] = [0]
    protocol: Protocol = Protocol()
    baseline: dict[str, VariantTable] = {}
    task: dict[str, OwnTaskTable] = {}
    scenario: Annotated[list[ScenarioSpec], Field(min_length=1)]

    _name = field_validator("name")(check_name)

    @field_validator("baseline")
    @classmethod
    def _names(cls, tables: dict[str, VariantTable]) -> dict[str, VariantTable]:
        for name in tables:
            try:
                check_name(name)
            except ValueError as error:
                raise ValueError(f"{name!r} cannot be a name: {error}") from error
        return tables


def derived_name(shift: Any, settings: Mapping[str, Any]) -> str | None:
    """Return the default name of a scenario, or None if its tasks make no valid name.

    It consists of the names of its tasks and the shift's `short_name`, or name if it has none.

    Examples
    --------
    >>> derived_name("dataset", {"tasks": ["glue/sst2", "glue/mrpc"]})
    'sst2-mrpc'
    >>> derived_name("sentence-length", {"task": "glue/qnli", "unit": "words"})
    'qnli-length'
    """
    from clbench.shifts.base import SHIFTS

    tasks = settings.get("tasks", settings.get("task"))
    names = tasks if isinstance(tasks, list) else [tasks]
    if not names or not all(isinstance(name, str) for name in names):
        return None
    parts = [name.rpartition("/")[2] for name in names]
    if isinstance(shift, str):
        label = SHIFTS.get(shift).short_name if shift in SHIFTS else None
        parts.append(shift.rpartition("/")[2] if label is None else label)
    name = "-".join(part for part in parts if part)
    return name if NAME_PATTERN.fullmatch(name) else None
