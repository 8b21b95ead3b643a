"""Which cell may start next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from clbench.suite.plan import Cell

TRIES = 3
"""Times that a cell is started before its workers' deaths count as its failure."""


class Turns:
    """The cells of a run in their turns.

    Cells that share a first stage wait until one of them has trained it; others go ahead
    meanwhile. Should that one fail, the next takes its place.

    Parameters
    ----------
    cells
        To be run, in this order as far as possible.
    shared
        What a cell shares with others; None for one that shares nothing.
    """

    def __init__(self, cells: Iterable[Cell], shared: Callable[[Cell], Hashable | None]) -> None:
        self._waiting = list(cells)
        self._shared = {cell.key: shared(cell) for cell in self._waiting}
        self._leading: dict[Hashable, str] = {}
        self._trained: set[Hashable] = set()
        self._tries: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> Cell | None:
        """A cell that may start now; None if all that are left have to wait."""
        for position, cell in enumerate(self._waiting):
            group = self._shared[cell.key]
            if group is not None and group not in self._trained:
                if group in self._leading:
                    continue
                self._leading[group] = cell.key
            del self._waiting[position]
            self._tries[cell.key] += 1
            return cell
        return None

    def group(self, cell: Cell) -> Hashable | None:
        """What the cell shares with others."""
        return self._shared[cell.key]

    def leads(self, cell: Cell) -> bool:
        """Whether others wait for the cell's first stage."""
        group = self._shared[cell.key]
        return (
            group is not None
            and self._leading.get(group) == cell.key
            and any(self._shared[other.key] == group for other in self._waiting)
        )

    def awaited(self, group: Hashable) -> bool:
        """Whether a cell of the group is still to start."""
        return any(self._shared[cell.key] == group for cell in self._waiting)

    def finished(self, cell: Cell, *, well: bool) -> None:
        """A cell has come to its end; if all went well, its first stage is there."""
        group = self._shared[cell.key]
        if group is None:
            return
        if well:
            self._trained.add(group)
        if self._leading.get(group) == cell.key:
            del self._leading[group]

    def lost(self, group: Hashable) -> None:
        """The group's first stage is gone, and has to be trained again."""
        self._trained.discard(group)

    def died(self, cell: Cell) -> int:
        """A cell's worker died: it is next again, unless it was tried often enough.

        Returns
        -------
        int
            How often it may still be started.
        """
        self.finished(cell, well=False)
        left = TRIES - self._tries[cell.key]
        if left > 0:
            self._waiting.insert(0, cell)
        return left
