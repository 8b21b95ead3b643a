"""Write the board: an index, and a page for each suite, submission and method."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clbench.board.entries import Entry, read_entries
from clbench.board.manifest import facts, without_paths
from clbench.board.tables import COLUMNS, COSTS, Row, Table, suite_tables
from clbench.core import __version__
from clbench.core.errors import RunFolderError, named
from clbench.core.files import (
    as_folder_error,
    check_folder,
    folders,
    read_file,
    user_path,
    write_atomically,
)
from clbench.core.options import checks_arguments
from clbench.figures.forgetting import costs
from clbench.figures.tradeoff import tradeoff
from clbench.report.drawing import Plan, draw_all
from clbench.report.files import GROWN, attempt, has_grown, render, write_figure
from clbench.report.sentences import MARKS
from clbench.results.cell import CellResult
from clbench.results.published import published
from clbench.results.score_tables import failures, has_value, means, score_rows
from clbench.suite.baselines import read_baseline
from clbench.suite.read import packaged_files, read_suite

MARKER = " – clbench board</title>"
"""What every page of a board has, so that no other file is overwritten."""
MOST_FIGURES = 12
"""Most figures on the page of a suite."""

Suite = Mapping[str, Any]
"""Its `name` and `description`, and lists of its `entries`, `tables`, and rows of `published`
results."""
PlacedRow = tuple[Suite, int, Table, Row]
"""A row of a table, with the suite and the table's number in it."""


@checks_arguments
def write_board(
    folders: Sequence[str | Path], out: str | Path = "site"
) -> tuple[Path, tuple[str, ...]]:
    """Write the pages of all submissions in folders, and remove others of an earlier board.

    Parameters
    ----------
    folders
        Submissions or runs, or folders that contain some.
    out
        Folder of the board.

    Returns
    -------
    tuple
        The path of ``index.html``, and a line on each bad submission.

    Raises
    ------
    RunFolderError
        If no submission can be read, or a file in the way is not from a board; then nothing is
        written.
    """
    out = user_path(out, named("out"))
    check_folder(out)
    entries, problems = read_entries(folders)
    suites = _suites(entries)
    figures: dict[str, list[dict[str, Any]]] = {}
    for drawing in draw_all([plan for suite in suites for plan in _figures(suite)], ()):
        figures.setdefault(drawing[0], []).append(write_figure(drawing, out, ()))
    pages = {out / path: text for path, text in _pages(suites, entries, problems, figures)}
    for path in sorted({*pages, *out.glob("[sm]*s/*.html")}, key=lambda path: path not in pages):
        with as_folder_error(path):
            is_own = path.exists() and MARKER.encode() in read_file(path)
            if path not in pages and is_own:
                path.unlink()
        if path in pages and path.exists() and not is_own:
            raise RunFolderError(f"{path} is not from a board. Choose another {named('out')}.")
    for path, text in pages.items():
        write_atomically(path, text)
    return out / "index.html", tuple(problems)


def _suites(entries: Sequence[Entry]) -> list[Suite]:
    """Return the suites of entries and of published results, those with tables first."""
    ours: dict[str, list[Entry]] = {}
    for each in entries:
        ours.setdefault(each.suite["name"], []).append(each)
    theirs: dict[str, list[Any]] = {}
    for row in published().to_dict("records"):
        theirs.setdefault(row["suite"] or "single tasks", []).append(row)
    packaged = packaged_files("scenarios")
    suites: list[Suite] = [
        {
            "name": name,
            "description": _description(name, some, packaged),
            "entries": some,
            "tables": suite_tables(some),
            "published": theirs.get(name, []),
        }
        for name, some in (ours | {name: [] for name in theirs if name not in ours}).items()
    ]
    return sorted(suites, key=lambda suite: (not suite["tables"], not suite["entries"]))


def _description(name: str, entries: Sequence[Entry], packaged: Container[str]) -> str:
    """Return one description of a suite: that of the packaged one, else the first of an entry."""
    if name in packaged:
        return read_suite(name).file.description
    return next((each.description for each in entries if each.description), "")


def _titles(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the title of each entry by its name, with the name if another is called so."""
    titles = {each.name: each.manifest.name if each.manifest else each.name for each in entries}
    times = Counter(titles.values())
    return {name: text if times[text] == 1 else f"{text} ({name})" for name, text in titles.items()}


def _figures(suite: Suite) -> Sequence[Plan]:
    """Return the trade-offs and the costs of the methods of a suite."""
    return [
        (suite["name"], f"{table.heading}: {name}", partial(attempt, draw, table.cells))
        for table in suite["tables"]
        for draw, name, is_drawn in (
            (tradeoff, "old task versus new task", table.is_first),
            (costs, "cost", len(table.scenarios) == 1),
        )
        if is_drawn and len(table.rows) > 1
    ][:MOST_FIGURES]


def _by_method(
    suites: Sequence[Suite],
) -> tuple[dict[str, str], dict[str, list[PlacedRow]], dict[str, list[Mapping[str, Any]]]]:
    """Return the method of each baseline, and the rows and published results of each method."""
    names: dict[str, str] = {}
    rows: dict[str, list[PlacedRow]] = {}
    for suite in suites:
        for number, table in enumerate(suite["tables"], 1):
            for row in table.rows:
                method = row.cells[0].method
                names.setdefault(row.label, method)
                rows.setdefault(method, []).extend([(suite, number, table, row)] * table.is_first)
    theirs: dict[str, list[Mapping[str, Any]]] = {}
    for result in (result for suite in suites for result in suite["published"]):
        theirs.setdefault(names.get(result["method"], result["method"]), []).append(result)
    return names, rows, theirs


def _settings(cells: Sequence[CellResult]) -> dict[str, Any]:
    """Return the settings of each method of a submission, and of its protocol."""
    settings: dict[str, Any] = {}
    for cell in cells:
        settings[cell.baseline] = {"registered": cell.method, **cell.settings}
        settings["protocol"] = settings[cell.baseline].pop("protocol", {})
    return settings


def _pages(
    suites: Sequence[Suite],
    entries: Sequence[Entry],
    problems: list[str],
    figures: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, str]]:
    """Yield the path of each page in the board, and its text."""
    names, rows, theirs = _by_method(suites)
    methods = folders(sorted({*rows, *theirs}))
    files = {
        "suite_files": folders(suite["name"] for suite in suites),
        "entry_files": folders(each.name for each in entries),
        "method_files": {name: methods[method] for name, method in names.items()} | methods,
    }
    titles = _titles(entries)
    shared = {
        **files,
        "titles": titles,
        "columns": COLUMNS,
        "costs": COSTS,
        "marks": MARKS,
        "version": __version__,
    }

    def page(kind: str, title: str, file: str = "index", **values: Any) -> tuple[str, str]:
        content = {**shared, "root": "../" if "/" in file else "", "title": title, **values}
        return f"{file}.html", render(f"board-{kind}.html", "clbench.board", **content)

    lists: dict[str, Any] = {"suites": suites, "entries": entries, "methods": methods}
    yield page("index", "Board", problems=without_paths(problems), **lists)
    for suite in suites:
        name, file = suite["name"], f"suites/{files['suite_files'][suite['name']]}"
        yield page("suite", name, file, suite=suite, figures=figures.get(name, []))
    for each in entries:
        table = means(score_rows(each.cells, each.question.reference))
        yield page(
            "submission",
            titles[each.name],
            f"submissions/{files['entry_files'][each.name]}",
            entry=each, notes=[GROWN] * has_grown(each.suite), failures=failures(each.cells),
            facts=facts(each.cells), settings=_settings(each.cells),
            means=table, columns={n: COLUMNS[n] for n in COLUMNS if has_value(table, f"{n}_mean")},
        )  # fmt: skip
    packaged = packaged_files("baselines")
    for name, file in methods.items():
        about = read_baseline(name).description if name in packaged else ""
        values = {"about": about, "rows": rows.get(name, []), "published": theirs.get(name, [])}
        yield page("method", name, f"methods/{file}", **values)
