"""Output: results to stdout, everything else to stderr."""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clbench.core.errors import visible

FILE_WIDTH = 160
"""Width of a table in a file or a pipe, unless COLUMNS is set."""


class SafeConsole(Console):
    """A console that shows control characters instead of sending them to the terminal.

    Names are printed as they are, never read as markup.
    """

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text with visible control characters."""
        return super().render_str(visible(text), **options)


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

    Columns in `right` are aligned there; the first `unbroken` ones have no line breaks.
    """
    rows = list(rows)
    table = Table(box=None, show_header=bool(titles), pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(titles or [""] * len(rows[0])):
        justify: Any = "right" if title in right else "left"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=number < unbroken)
    for row in rows:
        table.add_row(*row)
    show_table(out(), table)


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being done; yields a function that shows another text."""
    console = err()
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
