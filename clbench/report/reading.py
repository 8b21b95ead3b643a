"""The cells of runs, as a report needs them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from clbench.errors import RunFolderError
from clbench.report.content import MOST_DETAILS, MOST_SCENARIOS
from clbench.results.cell import CellResult, summarizer
from clbench.results.store import Store


def read_runs(stores: Sequence[Store]) -> tuple[list[CellResult], list[str]]:
    """The cells of all runs, and lines for the user: files that hold none, and what differs.

    Nothing of two runs is taken for the same that is not. A scenario that an earlier run has with
    other rows or settings bears its run's name, and so do the methods of a later run that an
    earlier one has with other settings, or on the same seed, and all methods of one whose
    protocol is not the first run's. Cells whose curves no report shows are without them.

    Raises
    ------
    RunFolderError
        If a folder is no run or has no cell.
    """
    cells: list[CellResult] = []
    notes: list[str] = []
    keys: set[str] = set()
    known = _Meanings()
    light = summarizer(_Shown())
    for store, label in zip(stores, _labels(stores), strict=True):
        store.require()
        own = _Meanings()
        found = store.read(each=lambda cell, own=own: light(own.told(cell)))  # type: ignore[misc]
        notes += found.broken_lines(())
        if not found.cells:
            raise RunFolderError(f"{store.out} holds no finished cell yet.")
        methods, scenarios = own.unlike(known)
        notes += [f"{name} has other settings in {label} than before." for name in methods]
        notes += [
            f"{name} has other tasks or settings in {label} than before." for name in scenarios
        ]
        clash = {cell.baseline for cell in found.cells if cell.key in keys} | set(methods)
        differs = bool(_differences([stores[0], store]))
        keys |= {cell.key for cell in found.cells}
        for cell in found.cells:
            if cell.scenario in scenarios:
                cell = cell.model_copy(update={"scenario": f"{cell.scenario} ({label})"})
            elif differs or cell.baseline in clash:
                cell = cell.model_copy(update={"baseline": f"{cell.baseline} ({label})"})
            cells.append(cell)
        known.add(own)
    if differences := _differences(stores):
        notes.append(
            f"The protocols differ ({'; '.join(differences)}), so differences between these runs "
            "are not of their methods alone."
        )
    return cells, notes


class _Meanings:
    """What the names of methods and scenarios stand for in a run."""

    def __init__(self) -> None:
        self._methods: dict[str, str] = {}
        self._scenarios: dict[str, str] = {}

    def told(self, cell: CellResult) -> CellResult:
        """The cell, after a look at its settings."""
        ordinary = cell.status == "ok" and cell.reference_of is None
        if ordinary and cell.baseline not in self._methods:
            content = [cell.method, cell.settings.get("method")]
            self._methods[cell.baseline] = json.dumps(content, sort_keys=True)
        if cell.scenario not in self._scenarios:
            content = [cell.recipe.get(key) for key in ("scenario", "shift", "files", "tasks")]
            self._scenarios[cell.scenario] = json.dumps(content, sort_keys=True)
        return cell

    def unlike(self, other: _Meanings) -> tuple[list[str], list[str]]:
        """Names of methods and of scenarios that stand for something else there."""
        mine = (self._methods, self._scenarios)
        theirs = (other._methods, other._scenarios)
        methods, scenarios = (
            [name for name, meaning in own.items() if others.get(name, meaning) != meaning]
            for own, others in zip(mine, theirs, strict=True)
        )
        return methods, scenarios

    def add(self, other: _Meanings) -> None:
        """Take what a further run's names stand for; what is known stays."""
        self._methods = {**other._methods, **self._methods}
        self._scenarios = {**other._scenarios, **self._scenarios}


class _Shown:
    """Whether a page may show a cell's curves: in its details, or in a scenario's figures."""

    def __init__(self) -> None:
        self._cells = 0
        self._scenarios: set[str] = set()

    def __call__(self, cell: CellResult) -> bool:
        self._cells += 1
        if cell.status == "ok" and len(self._scenarios) < MOST_SCENARIOS:
            self._scenarios.add(cell.scenario)
        few = self._cells <= MOST_DETAILS
        return few or cell.status == "failed" or cell.scenario in self._scenarios


def _labels(stores: Sequence[Store]) -> list[str]:
    """The names of the runs' folders, with as many of their parents as tell them apart."""
    parts = [store.out.resolve().parts for store in stores]
    for count in range(1, max(map(len, parts)) + 1):
        found = ["/".join(each[-count:]) for each in parts]
        if len(set(found)) == len(found):
            return found
    return ["/".join(each) for each in parts]


def _differences(stores: Sequence[Store]) -> list[str]:
    """What of the protocol is not the same in all runs, in words."""
    protocols = [store.read_suite().get("protocol", {}) for store in stores]
    found = []
    for key in dict.fromkeys(key for protocol in protocols for key in protocol):
        values = [protocol.get(key) for protocol in protocols]
        if any(value != values[0] for value in values):
            each = zip(_labels(stores), values, strict=True)
            found.append(f"{key}: " + ", ".join(f"{v} in {label}" for label, v in each))
    return found
