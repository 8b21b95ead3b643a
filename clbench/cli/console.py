"""Where output goes: results to stdout, everything else to stderr."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


FILE_WIDTH = 160
"""Columns of a table in a file or a pipe, unless COLUMNS says otherwise."""


def out() -> Console:
    """For results; names are shown as they are, never read as markup."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console


def show_table(console: Console, table: Table) -> None:
    """Print a table; in a file or a pipe without the blanks that fill up its last column."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        console.print(line.rstrip(), soft_wrap=True)


def err() -> Console:
    """For progress and notes."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def duration(seconds: float) -> str:
    """``42 s``, ``7 min``, ``3 h 20 min``: as exact as an estimate deserves."""
    if seconds < 90:
        return f"{max(seconds, 0.0):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d} min" if hours < 48 else f"{hours / 24:.1f} days"


def plural(count: int, word: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count} {word}{'' if count == 1 else 's'}"
