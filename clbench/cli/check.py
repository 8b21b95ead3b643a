"""`clbench check`."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clbench.errors import SettingsError

if TYPE_CHECKING:
    from clbench.conformance import Row

WORDS = {"pass": "ok", "fail": "FAILED", "skip": "-"}


def check(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD", help="A baseline, a method, a baseline file or module:Class."
        ),
    ],
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Python file with the method; repeatable."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|DIR", help="Built-in model, folder of a model, or name on the hub."
        ),
    ] = "tiny",
) -> int:
    """Check that a method keeps its promises: seeds, interruptions, rows, memory, models.

    Takes seconds, on tiny tasks. Exit code 0 if all checks pass, 1 if one fails, 2 if
    the command itself is wrong.
    """
    from clbench.cli.console import err
    from clbench.suite.baselines import read_baseline
    from clbench.suite.plugins import load_plugins

    settings = dict(_setting(text) for text in setting or ())
    load_plugins(plugin or ())
    baseline = read_baseline(method)  # report a wrong name before torch is imported
    from clbench.conformance import check as run_checks

    with err().status(f"checking {method}") as status:

        def started(name: str) -> None:
            status.update(f"checking {method}: {name}")

        rows = run_checks(baseline, settings=settings, model=model, started=started)
    _show(rows)
    return 1 if any(row.status == "fail" for row in rows) else 0


def _show(rows: Sequence[Row]) -> None:
    from rich.table import Table

    from clbench.cli.console import out, plural

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(row.check, WORDS[row.status], row.reason)
        if row.hint:
            table.add_row("", "", f"What to do: {row.hint}")
    out().print(table)
    counts = Counter(row.status for row in rows)
    failed = f", {counts['fail']} failed" if counts["fail"] else ""
    skipped = f", {counts['skip']} skipped" if counts["skip"] else ""
    out().print(f"{plural(counts['pass'], 'check')} passed{failed}{skipped}.")


def _setting(text: str) -> tuple[str, Any]:
    """Return key and value of ``key=value``, the value read as in a baseline file."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise SettingsError(f"--set {text!r}: write KEY=VALUE, such as memory=20.")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
