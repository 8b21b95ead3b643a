"""Reading TOML files, with every way in which that fails told in one line."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clbench.errors import SuiteError
from clbench.messages import describe_missing
from clbench.suite.faults import key_of, shown


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of the file at `path`.

    Raises
    ------
    SuiteError
        If it is missing, a folder, unreadable, not UTF-8 (with the line) or no TOML (with
        the line).
    """
    place = shown(path)
    if path.is_dir():
        inside = sorted(found.name for found in path.glob("*.toml"))
        hint = f" Give one of its files: {', '.join(inside)}." if inside else " Give a .toml file."
        raise SuiteError(f"{place}: is a folder.{hint}")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        near = ", ".join(sorted(found.name for found in path.parent.glob("*.toml")))
        hint = f" In that folder: {near}." if near else ""
        raise SuiteError(f"{place}: {describe_missing(path)}.{hint}") from None
    except OSError as fault:
        raise SuiteError(f"{place}: cannot be read: {fault.strerror}.") from fault
    try:
        # Some editors put a byte-order mark first, which TOML does not know.
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as fault:
        line = content.count(b"\n", 0, fault.start) + 1
        raise SuiteError(
            f"{place}, line {line}: byte 0x{content[fault.start]:02x} is not UTF-8. "
            "Save the file with UTF-8 encoding."
        ) from fault
    except tomllib.TOMLDecodeError as fault:
        raise SuiteError(f"{place}: is not valid TOML: {fault}.") from fault
    except RecursionError as fault:
        raise SuiteError(f"{place}: is not valid TOML: brackets are nested too deeply.") from fault


def unusable_values(data: dict[str, Any]) -> list[str]:
    """Faults of values that TOML knows and no setting can have: inf, nan, dates and times."""
    faults = []
    for path, value in _leaves(data, ()):
        if isinstance(value, float) and not math.isfinite(value):
            faults.append(f"{key_of(path, data)}: must be a finite number, got {value}.")
        elif not isinstance(value, (str, int, float, bool)):
            faults.append(
                f"{key_of(path, data)}: a date or time ({value}) is no setting; put it in quotes."
            )
    return faults


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _leaves(inner, (*path, position))
    else:
        yield path, value
