"""The cells of runs, as a report needs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clbench.errors import RunFolderError
from clbench.report.content import MOST_DETAILS, MOST_SCENARIOS
from clbench.results.cell import CellResult
from clbench.results.light import Light
from clbench.results.store import Store


def read_runs(stores: Sequence[Store]) -> tuple[list[CellResult], list[str]]:
    """The cells of all runs, and a line for each file that holds none.

    Methods of a later run bear its name where an earlier run has the same, or where its protocol
    is not the first run's. Cells whose curves no report shows are without them.

    Raises
    ------
    RunFolderError
        If a folder is no run or has no cell.
    """
    cells: list[CellResult] = []
    notes: list[str] = []
    seen: dict[str, Path] = {}
    light = Light(_Shown())
    for store, label in zip(stores, _labels(stores), strict=True):
        store.require()
        found = store.read(each=light)
        notes += found.broken_lines(())
        if not found.cells:
            raise RunFolderError(f"{store.out} holds no finished cell yet.")
        clash = {c.baseline for c in found.cells if seen.get(c.key, store.out) != store.out}
        differs = bool(_differences([stores[0], store]))
        for cell in found.cells:
            seen.setdefault(cell.key, store.out)
            if differs or cell.baseline in clash:
                renamed = f"{cell.baseline} ({label})"
                cell = cell.model_copy(update={"baseline": renamed})
            cells.append(cell)
    if differences := _differences(stores):
        notes.append(
            f"The protocols differ ({'; '.join(differences)}), so differences between these runs "
            "are not of their methods alone."
        )
    return cells, notes


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
