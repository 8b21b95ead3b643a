"""Output: results to stdout, everything else to stderr."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clbench.core.errors import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

FILE_WIDTH = 160
"""Width of a table in a file or a pipe, unless COLUMNS is set."""


def out() -> Console:
    """Return the console for results."""
    console = _console(stderr=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console


def err() -> Console:
    """Return the console for progress and notes."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    class SafeConsole(Console):
        """A console that shows control characters instead of sending them to the terminal."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

    # Names are printed as they are, never read as markup.
    return SafeConsole(stderr=stderr, markup=False, highlight=False, emoji=False)


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
