"""Whether cells on disk were run with the settings that are asked for now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clbench.results.cell import CellResult, plain

SCENARIO_SECTIONS = ("version", "scenario", "shift", "files", "tasks", "model", "protocol")
"""Sections of a recipe that all cells of one scenario must share to stand in one table."""

RUN_SECTIONS = ("version", "model", "protocol")
"""Sections that all cells of a run must share."""

ONE_TASK = ("task_epochs", "task_steps")
"""Keys of the protocol that differ between the scenarios of one suite."""

IN_WORDS = {
    "version": "a version of clbench that trained differently",
    "shift": "another source of the shift",
    "model": "another model or other weights",
    "tasks": "other rows of {key}",
    "files": "other contents of the file of its {key}",
    "source": "another source of the method",
}
"""What to say where the values are digests, which tell a reader nothing."""

_MISSING = object()


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """The name."""


class Wanted(Protocol):
    """A cell that is to be run, as far as the store needs to know it."""

    @property
    def key(self) -> str:
        """Name of its file without the suffix."""

    @property
    def fingerprint(self) -> str:
        """Digest of its recipe."""

    @property
    def scenario(self) -> Named:
        """What is trained on."""

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Everything that decides the scores, by section."""


@dataclass(frozen=True)
class Conflict:
    """A finished cell that was run with other settings than those asked for."""

    cell: CellResult
    difference: str


def first_difference(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    sections: Sequence[str] | None = None,
    without: Sequence[str] = (),
) -> str | None:
    """The first part of two recipes that differs, as ``"was run with epochs = 3, now 1"``.

    Parameters
    ----------
    old, new
        The recipes.
    sections
        Those to compare; all of the new one's by default.
    without
        Keys inside sections that do not count.

    Returns
    -------
    str or None
        None if they are the same.
    """
    for section in new if sections is None else sections:
        before, now = plain(old.get(section)), plain(new.get(section))
        if before == now:
            continue
        if not isinstance(before, dict) or not isinstance(now, dict) or section == "model":
            return f"was run with {_name(section, section, before, now)}"
        for key, was, is_now in _leaves(before, now):
            if key not in without:
                return f"was run with {_name(section, key, was, is_now)}"
    return None


def conflicts(wanted: Sequence[Wanted], present: Iterable[CellResult]) -> list[Conflict]:
    """Finished cells that cannot stand in one table with those wanted.

    Two kinds: a cell of a wanted key with another fingerprint; and a cell that is not
    wanted now, but was run on other rows, on another model or by another protocol, so that
    the folder's table would compare what cannot be compared.
    """
    by_key = {cell.key: cell for cell in wanted}
    by_scenario = {cell.scenario.name: cell for cell in reversed(wanted)}
    found = []
    for cell in present:
        if cell.status != "ok":
            continue
        same = by_key.get(cell.key)
        if same is not None:
            if same.fingerprint == cell.fingerprint:
                continue
            difference = first_difference(cell.recipe, same.recipe) if cell.recipe else None
            found.append(Conflict(cell, difference or "was run with other settings"))
            continue
        if not cell.recipe:
            continue
        alike = by_scenario.get(cell.scenario)
        if alike is not None:
            difference = first_difference(cell.recipe, alike.recipe, sections=SCENARIO_SECTIONS)
        else:
            recipe = wanted[0].recipe if wanted else cell.recipe
            difference = first_difference(
                cell.recipe, recipe, sections=RUN_SECTIONS, without=ONE_TASK
            )
        if difference:
            found.append(Conflict(cell, difference))
    return found


def _leaves(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keys whose values differ, with both values; those inside the tables of a method too."""
    for key in [*now, *(key for key in before if key not in now)]:
        was, is_now = before.get(key, _MISSING), now.get(key, _MISSING)
        if was == is_now:
            continue
        if key == "settings" and isinstance(was, dict) and isinstance(is_now, dict):
            yield from _leaves(was, is_now)
        else:
            yield key, was, is_now


def _name(section: str, key: str, was: Any, is_now: Any) -> str:
    words = IN_WORDS.get(section, IN_WORDS.get(key))
    if words is not None:
        return words.format(key=key)
    return f"{key} = {_show(was)}, now {_show(is_now)}"


def _show(value: Any) -> str:
    if value is _MISSING:
        return "not set"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
