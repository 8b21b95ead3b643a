"""The table of results on a terminal, which grows as cells finish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, ProgressColumn

from clbench.cli.table import results_table
from clbench.results.cell import CellResult
from clbench.results.scores import scores_frame, summary

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

KEPT_FREE = 6
"""Lines of the window besides bars and table."""


class LiveTable(Progress):
    """Bars with the table of what is finished above them.

    It holds the scenarios that cells finished in last, as many as the window has lines for.
    """

    def __init__(self, *columns: ProgressColumn | str, **options: Any) -> None:
        self._found: dict[str, dict[str, CellResult]] = {}
        self._table: Table | None = None
        super().__init__(*columns, **options)

    def add_results(self, results: Iterable[CellResult]) -> None:
        """Take finished cells into the table; one of the same key takes the other's place."""
        for result in results:
            cells = self._found.pop(result.scenario, {})
            self._found[result.scenario] = {**cells, result.key: result}
        self._table = self._made()

    def get_renderables(self) -> Iterable[RenderableType]:
        """The table, then the bars."""
        if self._table is not None:
            yield self._table
            yield ""
        yield from super().get_renderables()

    def _made(self) -> Table | None:
        room = self.console.height - len(self.tasks) - KEPT_FREE
        shown: list[CellResult] = []
        for cells in reversed(self._found.values()):
            room -= len({cell.baseline for cell in cells.values()}) + 1
            if room < 0:
                break
            shown = [*cells.values(), *shown]
        rows = summary(scores_frame(shown)).to_dict("records") if shown else []
        return results_table(rows, self.console) if rows else None
