"""Output: results to stdout, everything else to stderr; and the table of results."""

import math
import os
import textwrap
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from clbench.cli.app import drop_output
from clbench.core.errors import count, visible
from clbench.results import score_tables
from clbench.results.cell import CellResult
from clbench.results.remarks import remarks, sentences
from clbench.suite.schema import Question
from clbench.suite.scores import Score

FILE_WIDTH = 160
"""Width of a table in a file or a pipe, unless COLUMNS is set."""
LEAST_TEXT = 30
"""Characters that the last column of a table needs to be readable."""


class SafeConsole(Console):
    """A console that shows control characters instead of sending them to the terminal.

    Names are printed as they are, never read as markup.
    """

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text with visible control characters."""
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        """Drop the output once its reader is gone, as with `| head`, but finish the command."""
        drop_output()


def out() -> Console:
    """Return the console for results."""
    console = SafeConsole(stderr=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console


def err() -> Console:
    """Return the console for progress and notes."""
    return SafeConsole(stderr=True)


def say(*lines: str) -> None:
    """Print lines of the result, unwrapped."""
    for line in lines:
        out().print(line, soft_wrap=True)


def note(*lines: str) -> None:
    """Print lines on progress, unwrapped, so that logs can be searched line by line."""
    for line in lines:
        err().print(line, soft_wrap=True)


def show_rows(
    rows: Iterable[Sequence[str]],
    titles: Sequence[str] = (),
    *,
    right: Container[str] = (),
    unbroken: int = 1,
) -> None:
    """Print rows in columns, with `titles` above them.

    Columns in `right` are aligned there; the first `unbroken` ones have no line breaks. In a window
    that leaves the last column less than `LEAST_TEXT`, each row becomes a few lines.
    """
    rows, console = list(rows), out()
    *others, last = (max(map(len, column)) for column in zip(*rows, strict=True))
    if console.width - sum(width + 2 for width in others) < min(last, LEAST_TEXT):
        for name, *texts, text in rows:
            indent = " " * (len(name) - len(name.lstrip()) + 2)
            last_title = f"{titles[-1]} ".lstrip() if titles else ""
            pairs = zip_longest(titles[1:-1], texts, fillvalue="")
            labelled = "; ".join(f"{title} {part}".strip() for title, part in pairs if part)
            wrapper = textwrap.TextWrapper(
                console.width, initial_indent=indent, subsequent_indent=f"{indent}  "
            )
            say(*filter(None, [name, wrapper.fill(labelled), wrapper.fill(last_title + text)]))
        return
    table = Table(box=None, show_header=bool(titles), pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(titles or [""] * len(rows[0])):
        justify: Any = "right" if title in right else "left"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=number < unbroken)
    for row in rows:
        table.add_row(*row)
    show_table(console, table)


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being done; yields a function that shows another text.

    Outside a terminal, each text is a line, with the time after which it is shown.
    """
    console, start = err(), time.monotonic()
    if not console.is_terminal:

        def show(text: str) -> None:
            seconds = time.monotonic() - start
            note(f"{text} (after {duration(seconds)})" if seconds >= 1 else text)

        yield show
        return
    with console.status(console.render_str(text)) as status:
        yield lambda text: status.update(console.render_str(text))


def show_table(console: Console, table: Table) -> None:
    """Print a table; in a file or a pipe, lines have no trailing blanks."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        console.print(line.rstrip(), soft_wrap=True)


def duration(seconds: float) -> str:
    """Return ``42 s``, ``7 min`` or ``3 h 20 min``: as exact as an estimate deserves."""
    if seconds < 90:
        return f"{max(seconds, 0.0):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d} min" if hours < 48 else f"{hours / 24:.1f} days"


def megabytes(*sizes: float) -> str:
    """Return ``59 MB, 1.2 GB`` for numbers of megabytes (1e6 bytes)."""
    return ", ".join(f"{s:.0f} MB" if s < 1000 else f"{s / 1000:.1f} GB" for s in sizes)


COSTS = {"train_seconds_mean": "train s", "training_memory_mb_mean": "memory MB"}


def show_results(
    path: Path | None,
    cells: Sequence[CellResult],
    question: Question = Question(),  # noqa: B008 - immutable
) -> int:
    """Print the table of results, remarks, the costs of searches, and the failures.

    Returns the exit code: 1 if a cell failed, else 0. `path` is None for cells of several runs.
    """
    console = out()
    if any(cell.is_smoke for cell in cells):
        say(score_tables.SMOKE)
    rows = score_tables.means(score_tables.score_rows(cells, question.reference))
    if rows:
        table = results_table(rows, console, question.scores)
        # If no layout fits, lines run over the edge; numbers are never cut.
        console.width = max(console.width, _widths(table, console).minimum)
        show_table(console, table)
        signs = score_tables.MARKS.items()
        say("", *(f"{sign} {text}" for flag, (sign, text) in signs if any(r[flag] for r in rows)))
    for scenario, texts in sentences(remarks(cells, question), question).items():
        say(*(f"{scenario}, {text}" for text in texts))
    searches = {
        (cell.family or cell.baseline, cell.search["seconds"]): cell.search
        for cell in cells
        if cell.search
    }
    for (name, *_), cost in searches.items():
        trials = count(cost["trials"], "trial")
        say(
            f"{name}: the search for its settings took {trials}, {cost['epochs']:.4g} epochs and "
            f"{duration(cost['seconds'])}"
        )
    failed = score_tables.failures(cells)
    say(*(f"failed: {key}: {reason}" for key, reason in failed))
    if failed:
        say(f"{len(failed)} of {count(len(cells), 'cell')} failed; repeat the command to retry.")
    if path is not None and (path / "scores.csv").exists():  # missing in a read-only folder
        say(f"Scores: {path / 'scores.csv'}")
        if any(cell.family for cell in cells):
            say(f"What methods lose where they learn as much: clbench report {path}")
    return 1 if failed else 0


def results_table(
    rows: Sequence[Mapping[Any, Any]], console: Console, asked: Sequence[str] = ()
) -> Table:
    """Return mean ± sample standard deviation over seeds in the widest layout that fits.

    Scores that a question `asked` for are among its columns.

    As the window narrows, the table drops the costs, then puts scenarios on lines of their own,
    then drops shares such as ``retained``, then puts deviations below the means.
    """
    scores = score_tables.visible_scores(rows, asked=asked)
    # Printing a sign that the terminal's encoding lacks would raise.
    sign = "±" if (console.encoding or "").lower().startswith("utf") else "+/-"
    order = list(dict.fromkeys(row["scenario"] for row in rows))
    rows = sorted(rows, key=lambda row: order.index(row["scenario"]))
    few = [score for score in scores if not score.ratio]
    for shown, options in (
        (scores, {"costs": True}),
        (scores, {}),
        (scores, {"own_lines": True}),
        (few, {"own_lines": True}),
        (few, {"own_lines": True, "below": True}),
    ):
        table = _layout(rows, shown, sign, **options)
        if _widths(table, console).maximum <= console.width:
            break
    return table


def _layout(
    rows: Sequence[Mapping[Any, Any]],
    scores: Sequence[Score],
    sign: str,
    *,
    costs: bool = False,
    own_lines: bool = False,
    below: bool = False,
) -> Table:
    """Return the table with `costs`, scenarios on `own_lines`, or deviations `below` the means."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    if not own_lines:
        table.add_column("scenario", overflow="fold")
    table.add_column("method", overflow="fold")
    titles = [*(score.label for score in scores), "seeds"]
    shown = [name for name in COSTS if costs and score_tables.has_value(rows, name)]
    for title in (*titles, *(COSTS[name] for name in shown)):
        table.add_column(title, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        scenario = "" if row["scenario"] == previous else row["scenario"]
        previous = row["scenario"]
        if own_lines and scenario:
            table.add_row(scenario)
        signs = score_tables.marks(flag for flag in score_tables.MARKS if row[flag])
        method = f"{row['method']}{signs}"
        texts = [f"  {method}"] if own_lines else [scenario, method]
        texts += [_score(row, score.name, sign, "\n" if below else " ") for score in scores]
        total = row["seeds"] + row["failed"]
        texts.append(f"{row['seeds']}/{total}" if row["failed"] else f"{total}")
        table.add_row(*texts, *(_cost(row[name]) for name in shown))
    return table


def _widths(table: Table, console: Console) -> Measurement:
    """Return the minimum width of the table, and the width at which nothing wraps."""
    return Measurement.get(console, console.options.update(max_width=10_000), table)


def _score(row: Mapping[Any, Any], name: str, sign: str, separator: str) -> str:
    mean, spread = row[f"{name}_mean"], row[f"{name}_std"]
    if math.isnan(mean):
        return "-"
    text = f"{round(mean, 3) + 0.0:.3f}"  # adding 0 turns -0.000 into 0.000
    return text if math.isnan(spread) else f"{text}{separator}{sign}{spread:.3f}"


def _cost(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}" if value < 10 else f"{value:,.0f}"
