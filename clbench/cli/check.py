"""`clbench check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
        typer.Option("--set", metavar="KEY=VALUE", help="Another value of a setting; repeatable."),
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
    something in the command is wrong.
    """
    from clbench.suite.baselines import read_baseline
    from clbench.suite.plugins import load_plugins

    changed = dict(_setting(text) for text in setting or ())
    load_plugins(plugin or ())
    found = read_baseline(method)  # a wrong name is told before torch is imported
    from clbench.cli.console import err
    from clbench.conformance.checks import check as make

    console = err()
    if console.is_terminal:
        with console.status(f"checking {method}") as status:
            rows = make(
                found,
                settings=changed,
                model=model,
                told=lambda name: status.update(f"checking {method}: {name}"),
            )
    else:
        rows = make(found, settings=changed, model=model)
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
    failed = sum(row.status == "fail" for row in rows)
    left = sum(row.status == "skip" for row in rows)
    passed = plural(len(rows) - failed - left, "check")
    more = f", {failed} failed" if failed else ""
    more += f", {left} not made" if left else ""
    out().print(f"{passed} passed{more}.")


def _setting(text: str) -> tuple[str, Any]:
    """Key and value of ``key=value``; the value is read as in a baseline file.

    Raises
    ------
    SettingsError
        If it has another form.
    """
    import tomllib

    from clbench.errors import SettingsError

    key, sign, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not sign or not key or not value:
        raise SettingsError(f"--set {text!r}: write KEY=VALUE, such as memory=20.")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
