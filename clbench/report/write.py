"""Writes a report: the page, its figures, its tables."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clbench
from clbench.cache import write_atomically
from clbench.report.content import (
    MOST_SCENARIOS,
    Content,
    details,
    finished_scenarios,
    gather,
    overview,
    published_rows,
    table_rows,
    verdicts,
)
from clbench.report.drawing import FORMATS, draw_all
from clbench.report.reading import read_runs
from clbench.report.tables import table_files
from clbench.results.cell import CellResult
from clbench.results.output_folder import as_folder_error, write_text
from clbench.results.store import Store

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes
    ----------
    page
        ``index.html``.
    content
        Its numbers.
    notes
        Lines for the user: files that hold no cell.
    """

    page: Path
    content: Content
    notes: tuple[str, ...]


def write_report(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    formats: Sequence[str] = FORMATS,
    read: tuple[Sequence[CellResult], Sequence[str]] | None = None,
) -> Report:
    """Write ``index.html``, ``figures/`` and ``tables/``; reads results only.

    Parameters
    ----------
    runs
        Folders of runs. Methods of a later one bear the name of its run where they would be
        taken for an earlier one's, see `read_runs`.
    out
        Folder of the report; ``report`` in the first run's folder by default.
    formats
        Of the figures beside the page: png, svg, pdf.
    read
        What `read_runs` gave for these runs, where it was called already.

    Raises
    ------
    RunFolderError
        If a folder is no run, has no finished cell, or the report cannot be written.
    """
    stores = [Store(Path(run)) for run in runs]
    cells, notes = read_runs(stores) if read is None else read
    folder = Path(out) if out is not None else stores[0].out / "report"
    with as_folder_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    suites = [store.read_suite() for store in stores]
    pictures: dict[str, dict[str, Any]] = {}
    for store in stores:
        pictures = {**store.read_pictures(), **pictures}
    drawn = draw_all(_figures(cells, pictures), formats)
    content = gather(cells)  # while others draw
    figures = []
    for name, title, caption, files in list(drawn):
        for kind in formats:
            path = folder / "figures" / f"{name}.{kind}"
            with as_folder_error(path):
                write_atomically(path, files[kind])
        image = base64.b64encode(files["page"]).decode("ascii")
        image = f"data:image/png;base64,{image}"
        figures.append({"title": title, "caption": caption, "image": image})
    theirs = published_rows(content, [str(suite.get("name", "")) for suite in suites])
    frames = {"scores": content.frame, "means": content.means, "comparisons": content.comparisons}
    if theirs:
        frames["published"] = _frame(theirs)
    for name, frame in frames.items():
        for file, text in table_files(name, frame).items():
            write_text(folder / "tables" / file, text)
    shown, left_out = details(content)
    page = folder / "index.html"
    text = render(
        notes=notes,
        title=" and ".join(dict.fromkeys(str(s.get("name", "run")) for s in suites)),
        overview=overview(content),
        verdicts=verdicts(content),
        rows=table_rows(content),
        figures=figures,
        published=theirs,
        details=shown,
        left_out=left_out,
        suites=[_suite(suite, store.out) for suite, store in zip(suites, stores, strict=True)],
        version=clbench.__version__,
    )
    write_text(page, text)
    return Report(page, content, tuple(notes))


def render(**values: Any) -> str:
    """The page; every value is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("clbench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": _score, "signed": _signed, "amount": _amount}
    return environment.get_template("page.html").render(**values)


def _figures(
    cells: Sequence[CellResult], pictures: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, Figure]]:
    """Name, title and figure."""
    from clbench import figures
    from clbench.figures.shift import picture

    drawn: list[tuple[str, str, Callable[[], Figure]]] = [
        ("tradeoff", "Old task against new", lambda: figures.tradeoff(cells)),
        ("forgetting", "What was forgotten", lambda: figures.forgetting(cells)),
        ("rates", "Learning rates by depth", partial(_rates, cells)),
    ]
    for scenario in finished_scenarios(cells)[:MOST_SCENARIOS]:
        own = [cell for cell in cells if cell.scenario == scenario]
        if scenario in pictures:
            draw_shift = partial(picture, scenario, pictures[scenario])
            drawn.append((f"shift-{scenario}", f"{scenario}: the shift", draw_shift))
        drawn += [
            (f"curves-{scenario}", f"{scenario}: while it is forgotten", _later("curves", own)),
            (f"anchor-{scenario}", f"{scenario}: the anchor", _later("anchor_distances", own)),
            (f"matrices-{scenario}", f"{scenario}: score matrices", _later("matrices", own)),
            (f"costs-{scenario}", f"{scenario}: cost", _later("costs", own)),
        ]
    for name, title, made in drawn:
        try:
            figure = made()
        except ValueError:
            continue  # it has nothing to show here, such as curves of a run without points
        yield name, title, figure


def _rates(cells: Sequence[CellResult]) -> Figure:
    """The rates of methods that have some for each group of layers, and the flat rate.

    Raises
    ------
    ValueError
        If there are none, or they differ in the number of groups or the flat rate.
    """
    from clbench.figures import rate_distributions

    found: dict[str, list[float]] = {}
    flats = set()
    for cell in cells:
        flat = float(cell.settings.get("protocol", {}).get("lr") or 0.0)
        method = cell.settings.get("method", {})
        multiples = method.get("multiples")
        rates = method.get("rates") or (multiples and [flat * each for each in multiples])
        if isinstance(rates, list) and rates:
            found[cell.baseline] = [float(rate) for rate in rates]
            flats.add(flat)
    if len(flats) != 1:
        raise ValueError("there is no one flat rate to draw rates beside")
    inner = [f"group {number}" for number in range(1, len(next(iter(found.values()))) - 1)]
    return rate_distributions(found, groups=["embeddings", *inner, "head"], flat=flats.pop())


def _later(name: str, cells: Sequence[CellResult]) -> Callable[[], Figure]:
    from clbench import figures

    return lambda: getattr(figures, name)(cells)


def _suite(suite: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """A run's suite, and the commands that run it again."""
    protocol = suite.get("protocol", {})
    return {
        "name": suite.get("name", out.name),
        "description": suite.get("description", ""),
        "commands": [shlex.join(map(str, words)) for words in _commands(suite)],
        "folder": out.name,
        "protocol": protocol,
    }


def _commands(suite: Mapping[str, Any]) -> list[list[Any]]:
    if suite.get("commands"):
        return list(suite["commands"])
    # Runs of earlier versions did not keep them.
    words = ["clbench", "run", str(suite.get("name", ""))]
    protocol = suite.get("protocol", {})
    for option, value in (
        ("--model", protocol.get("model")),
        ("--limit", protocol.get("limit")),
        ("--methods", ",".join(suite.get("methods", []))),
        ("--seeds", ",".join(map(str, suite.get("seeds", [])))),
    ):
        if value not in (None, ""):
            words += [option, str(value)]
    return [words]


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows)


def _score(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 3) + 0.0:.3f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 3) + 0.0:+.3f}"


def _amount(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 10 and value % 1 else f"{value:,.0f}"
