"""From the name or path of a suite to its checked contents."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clbench.errors import UnknownNameError, did_you_mean
from clbench.suite import packaged
from clbench.suite.faults import explain, key_of, raise_faults
from clbench.suite.schema import SuiteFile, derived_name
from clbench.suite.toml import read_toml, unusable_values

SCENARIO_KEYS = ("name", "shift", "note")
"""Keys of a ``[[scenario]]`` table that are not settings of its shift."""


@dataclass(frozen=True)
class Suite:
    """A suite file that was read.

    Attributes
    ----------
    path
        The file.
    base
        Its folder; relative paths in the file start there.
    file
        Its contents.
    """

    path: Path
    base: Path
    file: SuiteFile

    @property
    def name(self) -> str:
        """The suite's name."""
        return self.file.name

    @property
    def scenario_names(self) -> list[str]:
        """Names of the scenarios in the file's order."""
        return [scenario.name for scenario in self.file.scenario]


def read_suite(name_or_path: str | Path) -> Suite:
    """Read a packaged suite by its name, or any suite file by its path.

    A text that ends with ``.toml`` or holds a path separator is a path. Names of methods,
    shifts and tasks are looked up later, by `clbench.suite.plan.make_plan`, since plug-ins
    may add to them.

    Raises
    ------
    UnknownNameError
        If no packaged suite has that name.
    SuiteError
        If the file cannot be read or is wrong; all its faults at once.
    """
    path = find_suite(name_or_path)
    data = read_toml(path)
    faults = unusable_values(data)
    if faults:
        raise_faults(path, faults)
    data = _prepared(data, path)
    file = None
    try:
        file = SuiteFile.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as fault:
        faults += explain(fault, data, SuiteFile)
    faults += _duplicates(data)
    raise_faults(path, faults)
    assert file is not None
    return Suite(path, path.parent, file)


def find_suite(name_or_path: str | Path) -> Path:
    """The absolute path of a suite.

    Raises
    ------
    UnknownNameError
        If a plain name is that of no packaged suite.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or is_path(text):
        return Path(text).expanduser().resolve()
    found = packaged.suites()
    if text in found:
        return found[text]
    beside = Path(f"{text}.toml")
    if beside.is_file():
        raise UnknownNameError(f"Unknown suite {text!r}. For the file here write {beside}.")
    if text and Path(text).exists():
        raise UnknownNameError(
            f"Unknown suite {text!r}. A suite file ends with .toml; for another file or a folder "
            f"write ./{text}."
        )
    known = did_you_mean(text, found, "clbench list suites")
    raise UnknownNameError(f"Unknown suite {text!r}.{known} Or give the path of a .toml file.")


def is_path(text: str) -> bool:
    """Whether what a user wrote for a suite or baseline means a file rather than a name."""
    return text.endswith(".toml") or "/" in text or "\\" in text or text in (".", "..")


def _prepared(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The data with names filled in and the settings of shifts in a table of their own."""
    prepared = {"name": path.stem, **data}
    if isinstance(data.get("scenario"), list):
        prepared["scenario"] = [_scenario(table) for table in data["scenario"]]
    return prepared


def _scenario(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    settings = {key: value for key, value in table.items() if key not in SCENARIO_KEYS}
    given = {key: table[key] for key in SCENARIO_KEYS if key in table}
    if "name" not in given:
        # Without a shift, which is a fault of its own, the name is that of its tasks.
        name = derived_name(given["shift"] if _is_name(given.get("shift")) else "dataset", settings)
        given |= {"name": name} if name else {}
    return {**given, "settings": settings}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _duplicates(data: dict[str, Any]) -> list[str]:
    """Faults of what may occur once only: scenario names, seeds, methods."""
    faults = []
    scenarios = data.get("scenario")
    if isinstance(scenarios, list):
        names = [table.get("name") if isinstance(table, dict) else None for table in scenarios]
        for first, second in _repeats(names):
            faults.append(
                f"{key_of(('scenario', second), data)}: has the same name as number {first + 1}. "
                "Give one of them another `name`."
            )
    for key in ("seeds", "methods"):
        values = data.get(key)
        if isinstance(values, list):
            faults += [
                f"{key} item {second + 1}: {values[second]!r} is there already as item {first + 1}."
                " Remove one of them."
                for first, second in _repeats(values)
            ]
    return faults


def _repeats(values: Sequence[Any]) -> Iterable[tuple[int, int]]:
    """Positions (first, again) of values that were there before."""
    seen: dict[Hashable, int] = {}
    for position, value in enumerate(values):
        if isinstance(value, (str, int)):
            if (type(value), value) in seen:
                yield seen[type(value), value], position
            else:
                seen[type(value), value] = position
