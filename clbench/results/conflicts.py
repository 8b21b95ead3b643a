"""Whether cells on disk were run with the settings that are asked for now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from clbench.results.cell import CellResult, plain

_MISSING = object()


class ScenarioTable(Protocol):
    """A scenario as the suite has it."""

    @property
    def shift(self) -> str:
        """Name of the shift."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the shift."""


class BaselineTable(Protocol):
    """A baseline as the suite has it."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the method, as far as the baseline gives them."""

    @property
    def sources(self) -> Mapping[str, Any]:
        """Where each setting comes from."""


class Wanted(Protocol):
    """A cell that is to be run, as far as the store needs to know it."""

    @property
    def key(self) -> str:
        """Name of its file without the suffix."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides its scores."""

    @property
    def scenario(self) -> ScenarioTable:
        """What is trained on."""

    @property
    def baseline(self) -> BaselineTable:
        """How it is trained."""

    @property
    def protocol(self) -> BaseModel:
        """What all cells share."""


@dataclass(frozen=True)
class Conflict:
    """A finished cell that was run with other settings than those asked for."""

    cell: CellResult
    difference: str


def settings_of(cell: Wanted) -> dict[str, Any]:
    """The sections of `CellResult.settings` for a cell, as plain JSON values.

    ``method`` holds what the baseline gives; whoever constructs the method puts its
    complete settings there instead.
    """
    return {
        "protocol": plain(cell.protocol),
        "scenario": {"shift": cell.scenario.shift, **plain(dict(cell.scenario.settings))},
        "method": plain(dict(cell.baseline.settings)),
        "sources": plain(dict(cell.baseline.sources)),
    }


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first setting that differs, as ``"was run with epochs = 3, now 1"``.

    Sections and keys are compared in the new one's order. A method's own settings are
    compared where both name them: a file records the defaults too, a baseline may leave
    them out.
    """
    for section in new:
        if section == "sources":
            continue
        before, now = plain(old.get(section, {})), plain(new[section])
        if not isinstance(before, dict) or not isinstance(now, dict):
            before, now = {section: before}, {section: now}
        for key in _keys(before, now, both=section == "method"):
            was, is_now = before.get(key, _MISSING), now.get(key, _MISSING)
            if was != is_now:
                return f"was run with {key} = {_show(was)}, now {_show(is_now)}"
    return None


def conflicts(wanted: Sequence[Wanted], present: Iterable[CellResult]) -> list[Conflict]:
    """Finished cells that cannot stand in one table with those wanted.

    Two kinds: a cell of a wanted key with another fingerprint, and a cell that is not
    wanted now but was run by another protocol (a folder holds one protocol, or its table
    would compare what cannot be compared).
    """
    by_key = {cell.key: cell for cell in wanted}
    shared = {"protocol": plain(wanted[0].protocol)} if wanted else {}
    found = []
    for cell in present:
        if cell.status != "ok":
            continue
        now = by_key.get(cell.key)
        if now is None:
            difference = first_difference(cell.settings, shared)
        elif now.fingerprint == cell.fingerprint:
            continue
        else:
            difference = first_difference(cell.settings, settings_of(now)) or (
                "was run on other data, another version of the model, or another source of "
                "the method"
            )
        if difference:
            found.append(Conflict(cell, difference))
    return found


def _keys(before: Mapping[str, Any], now: Mapping[str, Any], *, both: bool) -> Iterator[str]:
    for key in now:
        if key in before or not both:
            yield key
    if not both:
        yield from (key for key in before if key not in now)


def _show(value: Any) -> str:
    if value is _MISSING:
        return "not set"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
