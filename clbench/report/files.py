"""Write a report: its page, figures and tables."""

import base64
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from clbench.core import __version__
from clbench.core.errors import ArgumentError, RunFolderError, join_names, named, visible
from clbench.core.files import as_folder_error, check_folder, write_atomically
from clbench.figures import report_figures
from clbench.figures.style import ReportData
from clbench.report.content import MOST_SCENARIOS, Content, card_scores, finished_scenarios, gather
from clbench.report.drawing import FORMATS, Drawing, Plan, draw_all
from clbench.report.pictures import pictures
from clbench.report.runs import read_runs
from clbench.report.sentences import (
    MARKS,
    Line,
    control_line,
    error_rates,
    matched_lines,
    paper_note,
    signed,
    verdict_lines,
)
from clbench.results.cell import CellResult, cell_scores
from clbench.results.remarks import sentences
from clbench.results.resume import has_more_seeds
from clbench.results.score_tables import SMOKE, to_csv
from clbench.results.store import Store
from clbench.suite.schema import MEAN, Question

NARROW = 480
"""Pixels up to which a figure shrinks to fit a phone; a wider one is scrolled."""

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "±": r"$\pm$", "−": "$-$", "<": "$<$", ">": "$>$", "|": "$|$",
        "▲": r"$\bigtriangleup$", "▼": r"$\bigtriangledown$", "○": r"$\circ$",
    }
)  # fmt: skip


def write_figure(drawing: Drawing, folder: Path, formats: Sequence[str]) -> dict[str, Any]:
    """Write the files of a figure; return its values in the page."""
    name, title, caption, files = drawing
    for kind in formats:
        write_atomically(folder / f"{name}.{kind}", files[kind])
    image = f"data:image/png;base64,{base64.b64encode(files['page']).decode('ascii')}"
    narrow = int.from_bytes(files["page"][16:20], "big") <= NARROW  # the width in a PNG
    return {"title": title, "caption": caption, "image": image, "narrow": narrow}


def render(template: str, package: str = "clbench.report", **values: Any) -> str:
    """Return the HTML of a page by its template in a package, with every value escaped."""
    return _environment(package).get_template(template).render(**values)


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("clbench.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        # what a macro wrote is markup, a kind of str
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "json": partial(json.dumps, indent=1),
        "score": _score,
        "signed": _signed,
        "amount": _amount,
        "share": _share,
        "p": _p,
    }
    return environment


def table_files(name: str, frame: pd.DataFrame) -> dict[str, str]:
    """Return the texts of ``NAME.csv``, with every digit, and of ``NAME.md`` and ``NAME.tex``.

    pandas would need tabulate for Markdown, and eight seconds for LaTeX of 10,000 rows.
    """
    header = [str(column) for column in frame.columns]
    rows = [header, *([_cell(value) for value in row] for row in frame.itertuples(index=False))]
    markdown = [" | ".join(cell.replace("|", r"\|") for cell in row) for row in rows]
    markdown.insert(1, " | ".join(["---"] * len(header)))
    latex = [" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in rows]
    latex = [f"{{[}}{row[1:]}" if row.startswith("[") else row for row in latex]  # after \\\\
    begin = rf"\begin{{tabular}}{{{'l' * len(header)}}}"
    latex = [begin, r"\hline", latex[0], r"\hline", *latex[1:], r"\hline", r"\end{tabular}"]
    return {
        f"{name}.csv": to_csv(frame),
        f"{name}.md": "".join(f"| {line} |\n" for line in markdown),
        f"{name}.tex": "\n".join(latex) + "\n",
    }


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN alone differs from itself
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value == int(value) and abs(value) > 1 else _score(value)
    return str(value)


def _score(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 3) + 0.0:.3f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else signed(value)


def _amount(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 10 and value % 1 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{round(100 * value, 1) + 0.0:.1f} %"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


TUNING = (
    "Scores of this run come from held-out training rows, for tuning. The best score of many "
    "trials is too good by chance: compare on the reported split."
)
"""Note on a page of trials."""
CHANGED = "The question of this run changed after the run began."
"""Note on a page of a run that asks another question than at first."""
GROWN = (
    "Seeds were added to this run after it began, without planned looks. Its error rates hold only "
    "if the number of seeds was set before any result was seen."
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
    cells, notes = read_runs(stores)[:2] if contents is None else contents
    folder = Path(out) if out is not None else stores[0].out / "report"
    page = _page(folder)
    shifts: dict[str, dict[str, Any]] = {}
    for store in stores:
        shifts = store.read_pictures() | shifts
    questions = stores[0].questions()
    drawings = draw_all(list(_figures(cells, shifts, questions[-1])), formats)
    suites = [store.read_suite() for store in stores]
    complete, begun = _seeds(cells, suites[0])
    names = list(dict.fromkeys(str(suite.get("name", "run")) for suite in suites))
    content = gather(cells, questions[-1], stores[0].alpha(begun), names)
    smoke = SMOKE if any(cell.is_smoke for cell in cells) else ""
    notes = [
        *filter(None, [smoke]),
        *notes,
        *([CHANGED] if len(questions) > 1 else []),
        *([GROWN] if has_grown(suites[0]) else []),
        *([JOINED] if suites[0].get("grown") else []),
        *head_notes(cells),
        *{TUNING for suite in suites if suite.get("protocol", {}).get("score_on") == "tuning"},
    ]
    figures = [write_figure(drawing, folder / "figures", formats) for drawing in drawings]
    _write_tables(content, folder / "tables", smoke)
    controls = content.rows("controls")
    claims = {(r["scenario"], r["method"]) for r in controls if r["verdict"] != "no verdict"}
    curves = content.tables["fronts"]["difference"].notna().sum()
    matched = content.tables["matched"]["verdict"].notna().sum()
    text = render(
        "page.html",
        notes=notes,
        title=" and ".join(names),
        content=content,
        pictures=pictures(content.tables["comparisons"], content.question),
        marks=MARKS,
        verdicts=list(_verdicts(content)),
        error_rates=[UNKNOWN]
        if stores[0].is_suite_damaged()
        else error_rates(
            stores[0].looks(), complete, begun, len(claims), int(curves), int(matched)
        ),
        card_scores=card_scores(),
        figures=figures,
        suites=list(map(_suite, suites)),
        version=__version__,
    )
    write_atomically(page, text)
    return Report(page, content, tuple(notes))


def _page(folder: Path) -> Path:
    """Make the folder of a report; return the path of its page, unless another page is there."""
    check_folder(folder)
    with as_folder_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    foreign = page.exists() and " – clbench</title>" not in page.read_text("utf-8", "replace")
    if foreign or (folder / "audit.json").exists():
        raise RunFolderError(f"{folder} has a page of another kind. Choose another {named('out')}.")
    return page


def _write_tables(content: Content, folder: Path, smoke: str) -> None:
    """Write the tables that have rows, and those of `ALWAYS`."""
    for name, frame in content.tables.items():
        if len(frame) or name in ALWAYS:
            for file, text in table_files(name, frame).items():
                if name == "paper" and not file.endswith(".csv"):
                    note = paper_note(content.question, smoke)
                    tex = file.endswith(".tex")
                    text += f"% {note.translate(_LATEX)}\n" if tex else f"\n{note}\n"
                write_atomically(folder / file, text)


def _verdicts(content: Content) -> Iterator[tuple[str, list[Line]]]:
    """Yield titles and lines on the question and on controls, scenario by scenario."""
    question = content.question
    remarks = sentences(content.rows("comparisons"), question)
    if question.mean_over_scenarios:
        yield MEAN.capitalize(), verdict_lines(content.tables["comparisons"], MEAN, question)
    for scenario in finished_scenarios(content.cells):
        lines = []
        if not question.mean_over_scenarios:
            lines = verdict_lines(content.tables["comparisons"], scenario, question)
        lines += matched_lines(content.tables["matched"], scenario, question)
        lines += [Line(((f"{text}.", ""),)) for text in remarks.get(scenario, ())]
        if line := control_line(content.tables["controls"], scenario, question):
            lines.append(line)
        if lines:
            yield scenario, lines


def _seeds(cells: Sequence[CellResult], suite: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many seeds all methods of a suite have in all its scenarios, and how many any has.

    Failed cells count; other runs in the report may have more scenarios, methods and seeds.
    """
    names = [table["name"] for table in suite.get("scenario", []) if "name" in table]
    scenarios = {*(names or (cell.scenario for cell in cells))}
    methods = {*suite.get("methods", (c.baseline for c in cells if c.reference_of is None))}
    planned = {*suite.get("seeds", (cell.seed for cell in cells))}
    by_method: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        if cell.scenario in scenarios and cell.baseline in methods and cell.seed in planned:
            by_method.setdefault((cell.scenario, cell.baseline), set()).add(cell.seed)
    begun = set().union(*by_method.values())
    complete = begun.intersection(
        *(by_method.get(pair, ()) for pair in product(scenarios, methods))
    )
    return len(complete), len(begun)


def _figures(
    cells: Sequence[CellResult], pictures: Mapping[str, Mapping[str, Any]], question: Question
) -> Iterator[Plan]:
    """Yield name, title and maker of every figure of a report."""
    data = ReportData(cells, pictures, question.reference, question.scores)
    for scenario in (None, *finished_scenarios(cells)[:MOST_SCENARIOS]):
        for figure in report_figures():
            if scenario is None and figure.per == "run":
                yield figure.name, figure.title, partial(attempt, figure.draw, data)
            elif scenario is not None and figure.per == "scenario":
                # The label of another run's folder may have slashes.
                name = f"{figure.name}-{scenario}".replace("/", "-")
                title = f"{scenario}: {figure.title}"
                yield name, title, partial(attempt, figure.draw, data, scenario)


def attempt(make: Callable[..., Figure], *data: Any) -> Figure | None:
    """Return a figure, or None if it has nothing to show."""
    with suppress(ArgumentError):  # nothing to show, such as curves of a run without points
        return make(*data)
    return None


def _suite(suite: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, description and commands of a run's suite."""
    commands = [shlex.join(command) for command in suite.get("commands", [])]
    return {"name": "run", "description": "", **suite, "commands": commands}


def head_notes(cells: Sequence[CellResult]) -> list[str]:
    """Return how heads that tasks share were trained, and which methods hold them themselves."""
    shared = [c for c in cells if c.is_scored and cell_scores(c).get("told") is not None]
    losses = sorted({c.settings.get("protocol", {}).get("head_loss", "all") for c in shared})
    holding = dict.fromkeys(c.baseline for c in shared if c.settings.get("holds_head"))
    held = f"; held or computed by the method itself: {join_names(holding)}" if holding else ""
    return [f"Heads that tasks share: head_loss = {' and '.join(losses)}{held}."] if shared else []


def has_grown(suite: Mapping[str, Any]) -> bool:
    """Whether seeds were added to a run without looks after it began."""
    return has_more_seeds(suite) and not suite.get("looks")
