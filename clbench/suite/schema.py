"""What a suite file holds, as typed models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from clbench.tasks.spec import OwnTaskTable
from clbench.training.protocol import Protocol

NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+]|-(?!-))*")
NAME_RULE = (
    "a name consists of letters, digits, '.', '_', '+' and single '-', and starts with a "
    "letter or digit"
)

SHORT_SHIFT = {"sentence-length": "length", "embedding-cluster": "clusters"}
"""Last part of the name that a scenario without a name gets, where it is not the shift's."""


def check_name(name: str) -> str:
    """`name`, if it can stand in a file name beside others joined by ``--``.

    Raises
    ------
    ValueError
        If it cannot.
    """
    if not NAME_PATTERN.fullmatch(name) or len(name) > 100:
        raise ValueError(f"{NAME_RULE}; at most 100 characters")
    return name


class ScenarioSpec(BaseModel):
    """One ``[[scenario]]`` table.

    Attributes
    ----------
    name
        Plain and unique in its suite; see `derived_name` for the default.
    shift
        Name of a registered shift.
    settings
        Every other key of the table: the settings of the shift.
    note
        A remark that travels with the scenario into results and reports.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    shift: Annotated[str, Field(min_length=1)]
    settings: dict[str, Any] = {}
    note: str = ""

    _name = field_validator("name")(check_name)

    @property
    def task_names(self) -> tuple[str, ...]:
        """Tasks that the settings name: the keys ``task`` and ``tasks``, in order, unique."""
        return tasks_named(self.settings)


class VariantTable(BaseModel):
    """One ``[baseline.NAME]`` table: a baseline with some settings replaced.

    Attributes
    ----------
    of
        As an item of ``methods``: the baseline that it varies.
    settings
        What is different.
    sources
        Where these come from.
    description
        One line for lists; that of the other by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: Annotated[str, Field(min_length=1)]
    settings: dict[str, Any] = {}
    sources: dict[str, Annotated[str, Field(min_length=1)]] = {}
    description: str = ""


class SuiteFile(BaseModel):
    """A whole suite file.

    Attributes
    ----------
    name
        Default for the run's folder; by default the file's name without suffix.
    description
        One line for lists.
    methods
        Baselines: names of baseline files or methods, paths, or ``module:Class``.
    seeds
        One cell for each; unique.
    protocol
        How every cell is trained and scored.
    baseline
        Variants of baselines, by names that `methods` can then use.
    task
        Tasks of one's own, from files or the synthetic generator, by name.
    scenario
        What is trained on, in order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str = ""
    methods: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1)] = [0]
    protocol: Protocol = Protocol()
    baseline: dict[str, VariantTable] = {}
    task: dict[str, OwnTaskTable] = {}
    scenario: Annotated[list[ScenarioSpec], Field(min_length=1)]

    _name = field_validator("name")(check_name)

    @field_validator("baseline")
    @classmethod
    def _usable(cls, tables: dict[str, VariantTable]) -> dict[str, VariantTable]:
        for name in tables:
            try:
                check_name(name)
            except ValueError as fault:
                raise ValueError(f"{name!r} cannot be a name: {fault}") from fault
        return tables


def tasks_named(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Names under ``task`` and ``tasks``, whatever else the settings hold."""
    one, several = settings.get("task"), settings.get("tasks")
    names = [one] if isinstance(one, str) else []
    if isinstance(several, list):
        names += [name for name in several if isinstance(name, str)]
    return tuple(dict.fromkeys(names))


def derived_name(shift: str, settings: Mapping[str, Any]) -> str | None:
    """The name of a scenario that gives none, or None if its tasks give no usable one.

    ``sst2-mrpc`` for a dataset shift, ``sst2-length`` and ``sst2-clusters`` for the
    distribution shifts, and tasks and shift for any other.

    Examples
    --------
    >>> derived_name("dataset", {"tasks": ["glue/sst2", "glue/mrpc"]})
    'sst2-mrpc'
    >>> derived_name("sentence-length", {"task": "glue/qnli", "unit": "words"})
    'qnli-length'
    """
    several = settings.get("tasks")
    names = list(several) if isinstance(several, list) else [settings.get("task")]
    parts = [name.rpartition("/")[2] for name in names if isinstance(name, str)]
    if not names or len(parts) < len(names):
        return None
    if shift != "dataset":
        parts.append(SHORT_SHIFT.get(shift, shift.rpartition("/")[2]))
    name = "-".join(parts)
    return name if NAME_PATTERN.fullmatch(name) else None
