"""Whether cells on disk were run with the settings that are asked for now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clbench.results.cell import CellResult, plain

_MISSING = object()
_SHARED = ("protocol",)


class Wanted(Protocol):
    """What the store needs to know of a cell that is to be run."""

    @property
    def key(self) -> str:
        """Name of its file without the suffix."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides its scores."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """As `CellResult.settings`: the sections protocol, method and scenario."""


@dataclass(frozen=True)
class Conflict:
    """A finished cell that was run with other settings than those asked for."""

    cell: CellResult
    difference: str


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
    shared = {name: wanted[0].settings.get(name, {}) for name in _SHARED} if wanted else {}
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
            difference = first_difference(cell.settings, now.settings) or (
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
