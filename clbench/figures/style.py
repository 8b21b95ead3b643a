"""What figures share: registration for the report, looks of methods, panels, grouping."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from unicodedata import east_asian_width

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from pydantic import InstanceOf

from clbench.core.errors import ArgumentError, join_names
from clbench.core.options import checks_arguments
from clbench.results.cell import CellResult, without_extra_points
from clbench.results.score_tables import Run

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c510a", "#5e3c99")
"""Colours that colour-blind readers can tell apart: six of Okabe & Ito 2008, and two more."""
MARKS = "osv^D<>Pp"
LINES = ("-", "--", ":")
VANILLA = "vanilla"
BLACK, GREY, LIGHT = "#000000", "#8a8a8a", "#d9d9d9"
TICKS = 5
"""Most ticks of an axis in figures of many panels: ticks take most of the drawing time."""
LONGEST_LABEL = 30
"""Longest label in characters: longer names would cover data or run off the figure."""
NARROWEST = 1e-9
"""Span of scores, times and sizes below which they differ by rounding errors only."""

Points = list[tuple[float, float]]
Draw = TypeVar("Draw", bound="Callable[..., Figure]")


@dataclass(frozen=True)
class ReportData:
    """The data of a report's figures.

    `pictures` holds the data for the shift's figure by scenario; methods are compared with
    `reference` in `scores`, those of the primary question.
    """

    cells: Sequence[CellResult]
    pictures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reference: str = VANILLA
    scores: Sequence[str] = ("p_o", "p_s")


Results = Run | ReportData | Sequence[InstanceOf[CellResult]]


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report; see `in_report`."""

    name: str
    title: str
    order: int
    per: Literal["run", "scenario"]
    draw: Callable[..., Figure]


REPORT_FIGURES: list[ReportFigure] = []


def in_report(
    title: str, *, order: int, name: str | None = None, per: Literal["run", "scenario"] = "run"
) -> Callable[[Draw], Draw]:
    """Register a function whose figure every report shows.

    The function takes `ReportData`, and the scenario's name if it is drawn `per` scenario. It
    returns a Figure made by `captioned`, or raises an ArgumentError if there is nothing to draw.
    `title` is its heading, `order` its position among the figures of the run or of each scenario,
    and `name` that of its files, by default the function's; ``-SCENARIO`` is appended.
    """

    def register(draw: Draw) -> Draw:
        draw = checks_arguments(draw)
        REPORT_FIGURES.append(ReportFigure(name or draw.__name__, title, order, per, draw))
        return draw

    return register


class Look(NamedTuple):
    """Colour, mark, scale of the mark and line of a method."""

    color: str
    mark: str
    scale: float = 1.0
    line: str = "-"


def looks(cells: Iterable[CellResult]) -> dict[str, Look]:
    """Return the look of each baseline, always the same for the same cells."""
    return looks_of(cell.baseline for cell in cells)


def looks_of(baselines: Iterable[str]) -> dict[str, Look]:
    """Return the look of each baseline by its name, always the same for the same names."""
    names = list(dict.fromkeys(baselines))
    by_name = {VANILLA: Look(BLACK, "*", 1.8)}
    for i, name in enumerate(name for name in names if name != VANILLA):
        # Each pass through the colours has another line, and marks shifted by one: 72 looks.
        turn, color = divmod(i, len(PALETTE))
        mark, line = MARKS[(color + turn) % len(MARKS)], LINES[turn % len(LINES)]
        by_name[name] = Look(PALETTE[color], mark, line=line)
    return {name: by_name[name] for name in names}


def all_cells(results: Results) -> Sequence[CellResult]:
    """Return all cells of `results`."""
    return results if isinstance(results, Sequence) else results.cells


def good_cells(results: Results) -> list[CellResult]:
    """Return the finished cells without single-task references and extra points of sweeps.

    Raises an ArgumentError if there are none.
    """
    good = [c for c in all_cells(results) if c.is_scored]
    if not good:
        raise ArgumentError("there is no finished cell to draw")
    return without_extra_points(good)


def one_scenario(results: Results, scenario: str | None) -> tuple[list[CellResult], str]:
    """Return the finished cells of one scenario, and its name; ArgumentError if unclear which."""
    cells = good_cells(results)
    names = list(dict.fromkeys(cell.scenario for cell in cells))
    if scenario is None and len(names) > 1:
        raise ArgumentError(f"choose one of the scenarios {join_names(names)}")
    name = names[0] if scenario is None else scenario
    if name not in names:
        raise ArgumentError(f"there is no scenario {name!r} among {join_names(names)}")
    return [cell for cell in cells if cell.scenario == name], name


def by_scenario(cells: Iterable[CellResult]) -> dict[str, dict[str, list[CellResult]]]:
    """Return the cells by scenario and baseline."""
    groups: dict[str, dict[str, list[CellResult]]] = {}
    for cell in cells:
        groups.setdefault(cell.scenario, {}).setdefault(cell.baseline, []).append(cell)
    return groups


def short_labels(names: Iterable[str]) -> dict[str, str]:
    """Return a unique label for each name; long ones are cut in the middle."""
    labels: dict[str, str] = {}
    for name in dict.fromkeys(names):
        is_wide = any(east_asian_width(character) in "WF" for character in name)
        room = LONGEST_LABEL // (2 if is_wide else 1)
        half = (room - 1) // 2
        label = name if len(name) <= room else f"{name[:half]}…{name[-half:]}"
        repeated = label in labels.values()
        labels[name] = f"{label[: room - 4]}…{len(labels) + 1}" if repeated else label
    return labels


def draw_over_seeds(axes: Axes, series: Sequence[Points], look: Look, marks: int = 0) -> None:
    """Draw mean and range of a curve over seeds, at the steps that all seeds have.

    `marks` is the approximate number of points to mark; 0 marks all.
    """
    color, mark, scale, line = look
    tables = [dict(points) for points in series]
    steps = sorted(set.intersection(*map(set, tables)))
    values = np.array([[table[step] for step in steps] for table in tables])
    every = max(1, len(steps) // marks) if marks else 1
    mean = values.mean(0)
    axes.plot(steps, mean, marker=mark, ls=line, lw=1.5, ms=4 * scale, color=color, markevery=every)
    if len(values) > 1:
        axes.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.12, lw=0)


def panels(
    count: int, *, width: float = 3.4, height: float = 3.0, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels of that size in inches, at most `columns` in a row."""
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
    """Remove the top and right border, make tick labels small, and write them in full."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize="small")
    axes.ticklabel_format(useOffset=False)


def name_rows(axes: Axes, names: Sequence[str], below: float = 0.6) -> None:
    """Name the rows of axes from the bottom up, with that much space below the first one."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-below, len(names) - 0.4)
    axes.locator_params(axis="x", nbins=TICKS)
    axes.grid(axis="x", lw=0.4, alpha=0.6)


def widen(axes: Axes) -> None:
    """Give axes whose data differ by rounding errors only a width of 0.1."""
    for scale, (low, high), limits in (
        (axes.get_xscale(), axes.get_xlim(), axes.set_xlim),
        (axes.get_yscale(), axes.get_ylim(), axes.set_ylim),
    ):
        if scale == "linear" and abs(high - low) < NARROWEST:
            limits(low - 0.05, high + 0.05)


def legend(figure: Figure, methods: Mapping[str, Look]) -> None:
    """Add a legend of the methods above the panels, in as many columns as fit."""
    labels = short_labels(methods)
    columns = legend_columns(figure.get_figwidth(), labels.values())
    # There is room for two rows; more make the figure taller, not the panels smaller.
    rows = -(-len(methods) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows - 2))
    handles = [
        Line2D(
            *([], []),
            color=look.color,
            marker=look.mark,
            ms=6 * look.scale,
            ls="none" if look.line == "-" else look.line,
            label=labels[name],
        )
        for name, look in methods.items()
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=columns, frameon=False, fontsize="small"
    )


def legend_columns(width: float, labels: Iterable[str]) -> int:
    """Return how many columns of a legend fit into a width in inches, at most five."""
    lengths = [len(label) for label in labels]
    return max(1, min(5, int(width / (0.4 + 0.075 * max(lengths))), len(lengths)))


def count_seeds(cells: Iterable[CellResult]) -> str:
    """Return ``n = 3 seeds``, or a range if methods differ."""
    groups = by_scenario(cells).values()
    return seeds_of(len(some) for methods in groups for some in methods.values())


def seeds_of(numbers: Iterable[int]) -> str:
    """Return ``n = 3 seeds``, or a range if the numbers differ."""
    counts = {*numbers}
    low, high = min(counts), max(counts)
    return f"n = {low if low == high else f'{low} to {high}'} seed{'' if high == 1 else 's'}"


def captioned(figure: Figure, text: str) -> Figure:
    """Set the caption, which is the figure's label, finish the axes, and return the figure."""
    for axes in figure.axes:
        widen(axes)
        if title := axes.get_title():  # in its place: to find one takes a tenth of drawing
            axes.set_title(title, fontsize=axes.title.get_fontsize(), y=1.0)
    for label in figure.findobj(Text):
        label.set_text(label.get_text().replace("$", r"\$"))  # names are no formulas
        if not label.get_text().isascii():
            label.set_fontfamily(_families(label.get_text()))
    figure.set_label(text)
    return figure


@lru_cache
def _families(text: str) -> list[str]:
    """Return the usual font, and installed ones for the characters that it lacks."""
    usual, missing = font_manager.FontProperties().get_name(), set(text)
    paths = {font.name: font.fname for font in font_manager.fontManager.ttflist}
    families = []
    for name in (usual, *(name for name in paths if not name.startswith(("Last Resort", usual)))):
        with suppress(OSError, RuntimeError):  # a font that cannot be read
            found = missing & set(map(chr, font_manager.get_font(paths[name]).get_charmap()))
            families += [name] if found or name == usual else []
            missing -= found
        if not missing:
            break
    return families


@contextmanager
def quiet() -> Iterator[None]:
    """Silence matplotlib's warnings, such as those about characters that no font has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@quiet()
def save_png(figure: Figure, path: Path) -> None:
    """Write a figure to a PNG file."""
    figure.savefig(path, format="png", dpi=200, metadata={"Software": None})
