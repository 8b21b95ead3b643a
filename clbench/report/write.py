"""Write a report: page, figures and tables."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from clbench.core import __version__
from clbench.core.files import as_folder_error, write_atomically
from clbench.figures import report_figures
from clbench.figures.style import ReportData
from clbench.report.content import Content, card_scores, finished_scenarios, gather
from clbench.report.files import FORMATS, draw_all, render, table_files, write_figure
from clbench.report.reading import MOST_SCENARIOS, read_runs
from clbench.report.sentences import Line, control_line, error_rates, verdict_lines
from clbench.results.cell import CellResult
from clbench.results.store import Store
from clbench.suite.question import MEAN, Question

TUNING = (
    "Scores of this run come from held-out training rows, for tuning. The best score of many "
    "trials is too good by chance: compare on the reported split."
)
"""Note on a page of trials."""
GROWN = (
    "Commands of this run have different seeds and no planned looks. Its error rates hold only if "
    "the number of seeds was set before any result was seen."
)
"""Note on a page of a run whose seeds may have been added after looking at results."""
JOINED = (
    "Methods or scenarios were added to this run after it began. Its error rate over all looks "
    "holds only if they were set before any result was seen."
)
"""Note on a page of a run with looks."""
ALWAYS = ("scores", "means", "comparisons", "overall")
"""Tables that are written even if they are empty."""
UNKNOWN = "The question and the looks of this run are unknown, so its error rate is, too."
"""In place of the error rates."""


@dataclass(frozen=True)
class Report:
    """A written report: the path of ``index.html``, its numbers, and notes for the user."""

    page: Path
    content: Content
    notes: tuple[str, ...]


def write_report(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    formats: Sequence[str] = FORMATS,
    contents: tuple[Sequence[CellResult], Sequence[str]] | None = None,
) -> Report:
    """Write ``index.html``, ``figures/`` and ``tables/`` from the results of runs.

    Parameters
    ----------
    runs
        Folders of runs; see `read_runs` for names that several of them use.
    out
        Folder of the report; by default ``report`` in the first run's folder.
    formats
        Formats of the figure files: png, svg, pdf.
    contents
        Result of `read_runs` for these runs, if it was called already.

    Raises
    ------
    RunFolderError
        If a folder is not a run or has no finished cell, or the report cannot be written.
    """
    stores = [Store(Path(run)) for run in runs]
    cells, notes = read_runs(stores) if contents is None else contents
    folder = Path(out) if out is not None else stores[0].out / "report"
    with as_folder_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, dict[str, Any]] = {}
    for store in stores:
        pictures = store.read_pictures() | pictures
    questions = stores[0].questions()
    drawings = draw_all(_figures(cells, pictures, questions[-1]), formats)
    suites = [store.read_suite() for store in stores]
    seeds = _complete_seeds(cells, suites[0])
    names = list(dict.fromkeys(str(suite.get("name", "run")) for suite in suites))
    content = gather(cells, questions[-1], stores[0].alpha(len(seeds)), names)
    changed = "The question of this run changed after the run began."
    notes = [
        *notes,
        *([changed] if len(questions) > 1 else []),
        *([GROWN] if _has_grown(suites[0]) else []),
        *([JOINED] if suites[0].get("grown") else []),
        *{TUNING for suite in suites if suite.get("protocol", {}).get("score_on") == "tuning"},
    ]
    figures = [write_figure(drawing, folder / "figures", formats) for drawing in drawings]
    for name, frame in content.tables.items():
        if len(frame) or name in ALWAYS:
            for file, text in table_files(name, frame).items():
                write_atomically(folder / "tables" / file, text)
    page = folder / "index.html"
    text = render(
        "page.html",
        notes=notes,
        title=" and ".join(names),
        content=content,
        verdicts=list(_verdicts(content)),
        error_rates=[UNKNOWN]
        if stores[0].is_suite_damaged()
        else _error_rates(content, stores[0].looks(), len(seeds)),
        card_scores=card_scores(),
        figures=figures,
        suites=list(map(_suite, suites)),
        version=__version__,
    )
    write_atomically(page, text)
    return Report(page, content, tuple(notes))


def _error_rates(content: Content, looks: Sequence[int], seeds: int) -> list[str]:
    """Return sentences on the error rates of the page."""
    claims = {
        (row["scenario"], row["method"])
        for row in content.rows("controls")
        if row["verdict"] != "no verdict"
    }
    curves = content.tables["fronts"]["difference"].notna().sum()
    return error_rates(looks, seeds, len(claims), int(curves))


def _verdicts(content: Content) -> Iterator[tuple[str, list[Line]]]:
    """Yield titles and lines on the question and on controls, scenario by scenario."""
    question = content.question
    if question.mean_over_scenarios:
        yield MEAN.capitalize(), verdict_lines(content.tables["comparisons"], MEAN, question)
    for scenario in finished_scenarios(content.cells):
        lines = []
        if not question.mean_over_scenarios:
            lines = verdict_lines(content.tables["comparisons"], scenario, question)
        if line := control_line(content.tables["controls"], scenario, question):
            lines.append(line)
        if lines:
            yield scenario, lines


def _complete_seeds(cells: Sequence[CellResult], suite: Mapping[str, Any]) -> set[int]:
    """Return the seeds that all methods of a suite have in all scenarios, failed cells included.

    Other runs in the report may have more seeds and methods, and a look may be unfinished.
    """
    by_method: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        if cell.reference_of is None and cell.baseline in suite.get("methods", [cell.baseline]):
            by_method.setdefault((cell.scenario, cell.baseline), set()).add(cell.seed)
    planned = suite.get("seeds", {cell.seed for cell in cells})
    return set(planned).intersection(*by_method.values())


def _figures(
    cells: Sequence[CellResult], pictures: Mapping[str, Mapping[str, Any]], question: Question
) -> Iterator[tuple[str, str, Figure]]:
    """Yield name, title and figure of every figure that has something to show."""
    data = ReportData(cells, pictures, question.reference, question.scores)
    for scenario in (None, *finished_scenarios(cells)[:MOST_SCENARIOS]):
        for figure in report_figures():
            with suppress(ValueError):  # nothing to show, such as curves of a run without points
                if scenario is None and figure.per == "run":
                    yield figure.name, figure.title, figure.draw(data)
                elif scenario is not None and figure.per == "scenario":
                    title = f"{scenario}: {figure.title}"
                    yield f"{figure.name}-{scenario}", title, figure.draw(data, scenario)


def _suite(suite: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, description and commands of a run's suite."""
    commands = [shlex.join(command) for command in suite.get("commands", [])]
    return {"name": "run", "description": "", **suite, "commands": commands}


def _has_grown(suite: Mapping[str, Any]) -> bool:
    """Whether the commands of a run without looks have different seeds."""
    seeds = {
        command[command.index("--seeds") + 1] if "--seeds" in command[:-1] else ""
        for command in suite.get("commands", [])
    }
    return len(seeds) > 1 and not suite.get("looks")
