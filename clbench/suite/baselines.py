"""Baselines: methods with fixed settings, each with its source."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic

from clbench.core import errors
from clbench.core.files import user_path
from clbench.core.registry import Amount, Count, check_name
from clbench.methods.base import METHODS, Method
from clbench.suite.plugins import source_digest
from clbench.suite.read import check_file, is_path, packaged_files, raise_errors, read_toml
from clbench.suite.schema import Name, VariantTable

CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""``module:Class``."""
REFERENCE = re.compile(r"reference\d+")
RESERVED = "'reference' with a number is reserved for single-task references"
LIST = "clbench list methods"


class Range(pydantic.BaseModel):
    """Values between two ends, both included; whole numbers if both ends are."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    low: int | float
    high: int | float
    scale: Literal["log", "linear"] = "log"

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high or (self.scale == "log" and self.low <= 0):
            raise ValueError("low must be below high, and above 0 on a log scale")
        return self

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def rounded(self, value: float) -> float:
        """Return a value with three digits, but not beyond the ends."""
        return min(max(float(f"{value:.3g}"), self.low), self.high)

    def values(self, count: int) -> list[Any]:
        """Return at most `count` values at equal distances on the scale, both ends included."""
        low, high = self.low, self.high
        shares = [i / max(1, count - 1) for i in range(count)]
        if self.scale == "log":
            values = [math.exp(math.log(low) * (1 - s) + math.log(high) * s) for s in shares]
        else:
            values = [low * (1 - share) + high * share for share in shares]
        if self.is_whole:
            return list(dict.fromkeys(map(round, values)))
        inner = [self.rounded(value) for value in values[1:-1]]
        return list(dict.fromkeys([float(self.low), *inner, float(self.high)][:count]))

    def nearest(self, values: list[Any], value: float) -> Any:
        """Return the one of the values that is nearest to `value` on the scale."""
        if self.scale == "log":
            return min(values, key=lambda other: abs(math.log(other / max(value, 1e-300))))
        return min(values, key=lambda other: abs(other - value))


def _kind(value: Any) -> str:
    return "range" if isinstance(value, Mapping | Range) else "choices"


def _distinct(choices: list[Any]) -> list[Any]:
    if len(choices) < 2 or any(value in choices[:i] for i, value in enumerate(choices)):
        raise ValueError("must hold at least two choices, all different")
    return choices


def _listed(choices: Any) -> Any:
    if not isinstance(choices, list):
        raise ValueError("must be a range { low = …, high = … } or a list of choices")
    return choices


Choices = Annotated[
    list[Any], pydantic.BeforeValidator(_listed), pydantic.AfterValidator(_distinct)
]
Axis = Annotated[
    Annotated[Range, pydantic.Tag("range")] | Annotated[Choices, pydantic.Tag("choices")],
    pydantic.Discriminator(_kind),
]
Sweep = dict[str, Axis]
"""Ranges or choices by setting; the first is the dial that trades old against new tasks."""


class Cost(pydantic.BaseModel):
    """Cost of the search for a baseline's settings; reported with every cell that uses them.

    Counts all `trials`, their `epochs` over the rows of a task, and their `seconds` of training and
    scoring. For failed cells these are the seconds until they failed; their epochs are unknown.
    `seeds` are those of the trials: results on them are too good by chance. So are all results if
    the trials were scored `on_reported_rows`.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    trials: Annotated[Count, pydantic.Field(ge=1)]
    epochs: Amount
    seconds: Amount
    seeds: tuple[Count, ...] = ()
    on_reported_rows: bool = False

    def to_table(self) -> dict[str, Any]:
        """Return the cost as plain values, without fields at their defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True)
class Baseline:
    """A method with its settings.

    Attributes
    ----------
    name, description
        Name in cell keys and tables, unique in a plan; one line for lists.
    method
        Name of a registered method, or ``module:Class``.
    settings, sources
        Settings that differ from the method's defaults, and the source of each.
    path, table
        The file that holds the settings, if any, and the table in it.
    digest
        Digest of the method's source code, so that an edited method counts as a new one; None
        for methods of clbench.
    cost
        Cost of the search for the settings, if there was one.
    sweep
        Ranges of the settings that are worth tuning, the dial first.
    family
        Baseline of which this is one setting among several, as in a sweep; else empty.
    """

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    path: Path | None = None
    table: str = "[settings]"
    digest: str | None = None
    cost: Cost | None = None
    sweep: Sweep = field(default_factory=dict)
    family: str = ""

    def build(self, **changes: Any) -> Method:
        """Construct the method with the settings, some of them changed."""
        return METHODS.get(self.method)(**{**self.settings, **changes})

    def to_toml(self) -> str:
        """Return the text of a file that `read_baseline` reads as this baseline, with its cost."""
        sweep = {
            key: axis.model_dump(exclude_defaults=True) if isinstance(axis, Range) else axis
            for key, axis in self.sweep.items()
        }
        # TOML has no null: such a setting has the method's default.
        settings = {key: value for key, value in self.settings.items() if value is not None}
        tables = {
            "settings": settings,
            "sources": {key: text for key, text in self.sources.items() if key in settings},
            "sweep": sweep,
            "cost": {} if self.cost is None else self.cost.to_table(),
        }
        lines = [
            f"method = {toml_text(self.method)}",
            f"description = {toml_text(self.description)}",
        ]
        for name, table in tables.items():
            if table or name in ("settings", "sources"):
                lines += ["", f"[{name}]", *(f"{k} = {toml_text(v)}" for k, v in table.items())]
        return "\n".join(lines) + "\n"


class BaselineFile(pydantic.BaseModel):
    """A baseline file; the attributes are those of `Baseline`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str
    method: Name
    description: str = ""
    settings: dict[str, Any] = {}
    sources: dict[str, Name] = {}
    cost: Cost | None = None
    sweep: Sweep = {}

    @pydantic.field_validator("name")
    @classmethod
    def _usable(cls, name: str) -> str:
        if REFERENCE.fullmatch(name):
            raise ValueError(RESERVED)
        return check_name(name)


def read_baseline(text: str, *, base: Path | None = None) -> Baseline:
    """Return the baseline that a suite or a command names.

    `text` is the path of a baseline file, from the folder `base` or the working directory;
    ``module:Class``; the name of a packaged baseline; or that of a registered method, which then
    has its default settings. Raises an UnknownNameError if nothing has that name, a SuiteError with
    all errors of the file, or a PluginError if ``module:Class`` does not exist.
    """
    if is_path(text):
        return _read_file(user_path(text, "baseline", base or Path()).resolve())
    if CLASS.fullmatch(text):
        name = text.rpartition(":")[2].rpartition(".")[2]
        return Baseline(name, text, digest=_digest(text))
    files = packaged_files("baselines")
    if text in files:
        baseline = _read_file(files[text])
        if text in METHODS and baseline.method != text:
            raise errors.SuiteError(
                f"method {text!r} is both the baseline {files[text]} and a method registered "
                f"by {METHODS.where(text)}. Register the method under another name."
            )
        return baseline
    if text in METHODS:
        return Baseline(text, text, digest=_digest(text))
    hint = errors.did_you_mean(text, {*files, *METHODS}, LIST)
    raise errors.UnknownNameError(
        f"Unknown baseline or method {text!r}.{hint} For a method of your own, add "
        f"{errors.named('plugins', 'FILE')}, or give module:Class or a baseline file."
    )


def read_variant(name: str, table: VariantTable, suite: Path) -> Baseline:
    """Return the baseline of a suite's ``[baseline.NAME]`` table.

    Raises the errors of `read_baseline` for `of`, and an UnknownNameError if the name is taken.
    """
    location = f"[baseline.{errors.quote_key(name)}]"
    if name in packaged_files("baselines") or name in METHODS:
        raise errors.UnknownNameError(
            f"{location}: {name!r} is already a baseline or method. Rename it."
        )
    try:
        original = read_baseline(table.of, base=suite.parent)
    except errors.UnknownNameError as error:
        raise errors.UnknownNameError(
            f"{location} of: {error} A variant cannot be based on another variant."
        ) from error
    changed = variant(original, name, table.settings)
    return replace(
        changed,
        sources={**changed.sources, **table.sources},
        description=table.description or original.description,
        path=suite,
        table=f"{location} settings",
        cost=None if table.settings else original.cost,
        family="",
    )


def _read_file(path: Path) -> Baseline:
    file = check_file(path, {"name": path.stem, **read_toml(path)}, BaselineFile)
    problems = [
        f"[sources] {errors.quote_key(key)}: is not in [settings]."
        f"{errors.did_you_mean(key, file.settings)}"
        for key in file.sources
        if key not in file.settings
    ]
    is_known = CLASS.fullmatch(file.method) or file.method in METHODS
    digest = _digest(file.method) if is_known else None  # registers a module:Class
    baseline = Baseline(**dict(file), path=path, digest=digest)
    if not is_known:
        hint = errors.did_you_mean(file.method, METHODS, LIST)
        problems.append(f"method: there is no method {file.method!r}.{hint}")
    raise_errors(path, problems)
    return baseline


def variant(baseline: Baseline, name: str, settings: Mapping[str, Any]) -> Baseline:
    """Return a point of the sweep of a baseline: the same with other settings."""
    unchanged = {key: text for key, text in baseline.sources.items() if key not in settings}
    return replace(
        baseline,
        name=name,
        settings={**baseline.settings, **settings},
        sources=unchanged,
        family=baseline.name,
    )


def toml_text(value: Any) -> str:
    """Return a text, number, truth value, list or table as TOML on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {toml_text(item)}' for key, item in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


def _digest(method: str) -> str | None:
    """Return the digest of a method's code; registers a ``module:Class``."""
    digest = source_digest(method if CLASS.fullmatch(method) else METHODS.where(method))
    if CLASS.fullmatch(method):
        METHODS.add(method, method)
    return digest
