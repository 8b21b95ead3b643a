"""One look for all figures: colours for colour-blind readers, marks for print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from clbench.results.cell import CellResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c510a", "#5e3c99")
"""Seven of them after Okabe and Ito 2008, without black, which is vanilla's."""
MARKS = "osv^D<>Pp"
VANILLA = "vanilla"
BLACK, GREY, LIGHT = "#000000", "#8a8a8a", "#d9d9d9"

PANEL = (3.4, 3.0)
"""Width and height of one panel in inches."""
TICKS = 5
"""Steps of an axis at most, where there may be many panels; ticks take most of the drawing."""


class HasCells(Protocol):
    """A run, as `clbench.run` returns it."""

    @property
    def cells(self) -> tuple[CellResult, ...]:
        """Its results."""


Results = HasCells | Sequence[CellResult]
"""A run, or cells."""


@dataclass(frozen=True)
class Look:
    """Colour and mark of a method, and how much larger than others the mark has to be."""

    color: str
    mark: str
    scale: float = 1.0


def good_cells(results: Results) -> list[CellResult]:
    """The finished cells, without single-task references, in their order.

    Raises
    ------
    ValueError
        If there are none.
    """
    cells = results if isinstance(results, Sequence) else results.cells
    found = [cell for cell in cells if cell.status == "ok" and cell.reference_of is None]
    if not found:
        raise ValueError("there is no finished cell to draw")
    return found


def looks(cells: Iterable[CellResult]) -> dict[str, Look]:
    """A look for each baseline, the same in all figures of the same cells; vanilla's is black."""
    names = list(dict.fromkeys(cell.baseline for cell in cells))
    others = [name for name in names if name != VANILLA]
    colors, marks = len(PALETTE), len(MARKS)
    found = {
        # With each round through the colours the marks move on by one: 72 looks in all.
        name: Look(PALETTE[i % colors], MARKS[(i % colors + i // colors) % marks])
        for i, name in enumerate(others)
    }
    return {name: found.get(name, Look(BLACK, "*", 1.8)) for name in names}


def by_scenario(cells: Iterable[CellResult]) -> dict[str, dict[str, list[CellResult]]]:
    """Cells by scenario and by baseline, in their order."""
    found: dict[str, dict[str, list[CellResult]]] = {}
    for cell in cells:
        found.setdefault(cell.scenario, {}).setdefault(cell.baseline, []).append(cell)
    return found


def panels(
    count: int, *, width: float = PANEL[0], height: float = PANEL[1], columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, at most `columns` a row."""
    from matplotlib.figure import Figure

    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[:count]:
        plain(axes)
    return figure, grid[:count]


def plain(axes: Axes) -> None:
    """Only the lines that say something."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize="small")


def legend(figure: Figure, shown: dict[str, Look]) -> None:
    """Methods with their looks, above the panels, in as many columns as there is room for."""
    from matplotlib.lines import Line2D

    longest = max(map(len, shown))
    columns = max(1, min(5, int(figure.get_figwidth() / (0.4 + 0.075 * longest))))
    # The panels keep their height, for which two rows are allowed.
    rows = -(-len(shown) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows - 2))
    handles = [
        Line2D([], [], color=look.color, marker=look.mark, ms=6 * look.scale, ls="none", label=name)
        for name, look in shown.items()
    ]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(columns, len(handles)),
        frameon=False,
        fontsize="small",
    )


def seeds_in_words(cells: Iterable[CellResult]) -> str:
    """``n = 3 seeds``, or a range where methods differ."""
    counts = {len(some) for methods in by_scenario(cells).values() for some in methods.values()}
    low, high = min(counts), max(counts)
    words = f"{low}" if low == high else f"{low} to {high}"
    return f"n = {words} seed{'' if high == 1 else 's'}"


def captioned(figure: Figure, text: str) -> Figure:
    """The figure with a caption, which ``figure.get_label()`` gives back."""
    figure.set_label(text)
    return figure
