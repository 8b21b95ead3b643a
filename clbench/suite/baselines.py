"""Baselines: methods with fixed settings, each setting with its source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from clbench.errors import SuiteError, UnknownNameError, did_you_mean
from clbench.registry import Registry
from clbench.suite import packaged
from clbench.suite.faults import explain, nearest, quoted, raise_faults
from clbench.suite.plugins import source_digest
from clbench.suite.read import is_path
from clbench.suite.schema import VariantTable, check_name
from clbench.suite.toml import read_toml, unusable_values

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
LIST = "clbench list methods"
_RESERVED = re.compile(r"reference\d+")


class Cost(BaseModel):
    """What finding a baseline's settings took; charged to every cell that uses them.

    Attributes
    ----------
    trials
        Settings that were tried, those included that came to nothing.
    epochs
        Passes over the rows of a task, over all trials.
    seconds
        That training and scoring took, over all trials.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    trials: Annotated[int, Field(ge=1)]
    epochs: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Baseline:
    """A method with its settings.

    Attributes
    ----------
    name
        Unique in a plan; in the names of cells and in tables.
    method
        Name of a registered method, or ``module:Class``.
    settings
        What differs from the method's defaults.
    sources
        Where each setting comes from.
    description
        One line for lists.
    path, table
        The file that holds the settings, if there is one, and the table in it.
    digest
        Of the method's source code if it does not come with clbench, else None: a method
        of one's own that was edited is another method.
    cost
        What finding the settings took, if a search did.
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


class BaselineFile(BaseModel):
    """What a baseline file holds; the attributes are those of `Baseline`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    method: Annotated[str, Field(min_length=1)]
    description: str = ""
    settings: dict[str, Any] = {}
    sources: dict[str, Annotated[str, Field(min_length=1)]] = {}
    cost: Cost | None = None

    @field_validator("name")
    @classmethod
    def _usable(cls, name: str) -> str:
        if _RESERVED.fullmatch(name):
            raise ValueError("'reference' with a number is kept for single-task references")
        return check_name(name)


def read_baseline(text: str, *, base: Path | None = None) -> Baseline:
    """Find a baseline by what a suite or a command calls it.

    Parameters
    ----------
    text
        Path of a baseline file; ``module:Class``; name of a packaged baseline; or name of
        a registered method, which then has its default settings.
    base
        Folder that a relative path starts from; by default the working directory.

    Raises
    ------
    UnknownNameError
        If nothing has that name, or the file's method does not exist.
    SuiteError
        If the file cannot be read or is wrong; all its faults at once.
    PluginError
        If ``module:Class`` cannot be found.
    """
    if is_path(text):
        return _read_file((base or Path()).joinpath(Path(text).expanduser()).resolve())
    if _REFERENCE.fullmatch(text):
        name = text.rpartition(":")[2].rpartition(".")[2]
        return Baseline(name, text, digest=_digest_of_reference(text))
    found = packaged.baselines()
    methods = _methods()
    if text in found:
        baseline = _read_file(found[text])
        if text in methods and baseline.method != text:
            raise SuiteError(
                f"method {text!r} is both the baseline {found[text]} and a method registered "
                f"by {methods.where(text)}. Register the method under another name."
            )
        return baseline
    if text in methods:
        return Baseline(text, text, digest=source_digest(methods.where(text)))
    known = did_you_mean(text, {*found, *methods}, LIST)
    raise UnknownNameError(
        f"Unknown method {text!r}.{known} "
        "One of your own needs --plugin FILE, or write module:Class or the path of a baseline file."
    )


def vary(name: str, table: VariantTable, suite: Path) -> Baseline:
    """The baseline of a suite's ``[baseline.NAME]`` table.

    Parameters
    ----------
    name
        Its own.
    table
        What it varies, and how.
    suite
        The file.

    Raises
    ------
    UnknownNameError, SuiteError, PluginError
        As `read_baseline`, for the one that is varied; also if another has the name.
    """
    place = f"[baseline.{quoted(name)}]"
    if name in packaged.baselines() or name in _methods():
        raise UnknownNameError(f"{place}: there is a method of that name. Give yours another.")
    try:
        varied = read_baseline(table.of, base=suite.parent)
    except UnknownNameError as fault:
        text = str(fault)
        raise UnknownNameError(
            f"{place} of: {text[:1].lower()}{text[1:]} A variant of a variant there is not."
        ) from fault
    kept = {key: text for key, text in varied.sources.items() if key not in table.settings}
    return replace(
        varied,
        name=name,
        settings={**varied.settings, **table.settings},
        sources={**kept, **table.sources},
        description=table.description or varied.description,
        path=suite,
        table=f"{place} settings",
        cost=None if table.settings else varied.cost,
    )


def _read_file(path: Path) -> Baseline:
    data = read_toml(path)
    faults = unusable_values(data)
    raise_faults(path, faults)
    data = {"name": path.stem, **data}
    file = None
    try:
        file = BaselineFile.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as fault:
        faults += explain(fault, data, BaselineFile)
    faults += _source_faults(data, required=path in packaged.baselines().values())
    digest = None
    if isinstance(method := data.get("method"), str) and method:
        if _REFERENCE.fullmatch(method):
            digest = _digest_of_reference(method)
        elif method in (methods := _methods()):
            digest = source_digest(methods.where(method))
        else:
            known = nearest(method, methods, LIST)
            faults.append(f"method: there is no method {method!r}.{known}")
    raise_faults(path, faults)
    assert file is not None
    return Baseline(
        file.name,
        file.method,
        file.settings,
        file.sources,
        file.description,
        path,
        digest=digest,
        cost=file.cost,
    )


def _source_faults(data: Mapping[str, Any], *, required: bool) -> list[str]:
    settings, sources = data.get("settings", {}), data.get("sources", {})
    if not isinstance(settings, dict) or not isinstance(sources, dict):
        return []
    faults = [
        f"[sources] {quoted(key)}: there is no such key in [settings]."
        f"{nearest(key, settings) if settings else ''}"
        for key in sources
        if key not in settings
    ]
    if required:
        faults += [
            f"[settings] {quoted(key)}: has no source. Add it under [sources]."
            for key in settings
            if key not in sources
        ]
    return faults


def _digest_of_reference(text: str) -> str | None:
    """Make ``module:Class`` a method that the registry imports on first use."""
    digest = source_digest(text)
    _methods().add(text, text)
    return digest


def _methods() -> Registry[Any]:
    from clbench.methods.base import METHODS

    return METHODS
