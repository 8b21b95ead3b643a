"""`clbench check`."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clbench.cli.arguments import Only, command
from clbench.cli.console import err, say, show_rows
from clbench.core.errors import SettingsError, count
from clbench.core.options import Option
from clbench.suite.baselines import read_baseline
from clbench.suite.options import RunOptions
from clbench.suite.plugins import load_plugins
from clbench.suite.read import parse_toml

if TYPE_CHECKING:
    from clbench.conformance import Row

WORDS = {"pass": "ok", "fail": "FAILED", "skip": "-"}


@command
def check(
    options: Annotated[RunOptions, Only("plugins model", model="tiny")],
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD", help="Baseline, registered method, baseline file or module:Class."
        ),
    ],
    set_: Annotated[list[str] | None, Option("Override a setting.", "KEY=VALUE")] = None,
) -> int:
    """Check that a method keeps its promises, on tiny tasks.

    Tests seeds, resuming, access to rows, memory and model architectures within seconds. Exit
    code 0 if all checks pass, 1 if one fails, 2 if the command or its input is wrong.
    """
    settings = dict(_setting(text) for text in set_ or ())
    load_plugins(options.plugins)
    baseline = read_baseline(method)  # report a wrong name before importing torch
    from clbench.conformance import check as run_checks

    console = err()
    with console.status(console.render_str(f"checking {method}")) as status:

        def started(name: str) -> None:
            status.update(console.render_str(f"checking {method}: {name}"))

        model = options.model or "tiny"
        rows = run_checks(baseline, settings=settings, model=model, started=started)
    _show(rows)
    return 1 if any(row.status == "fail" for row in rows) else 0


def _show(rows: "Sequence[Row]") -> None:
    lines = []
    for row in rows:
        lines.append((row.check, WORDS[row.status], row.reason))
        if row.hint:
            lines.append(("", "", f"What to do: {row.hint}"))
    show_rows(lines, unbroken=2)
    counts = Counter(row.status for row in rows)
    failed = f", {counts['fail']} failed" if counts["fail"] else ""
    skipped = f", {counts['skip']} skipped" if counts["skip"] else ""
    say(f"{count(counts['pass'], 'check')} passed{failed}{skipped}.")


def _setting(text: str) -> tuple[str, Any]:
    """Return key and value of ``KEY=VALUE``, the value parsed as TOML if possible, else text."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise SettingsError(f"--set {text!r}: write KEY=VALUE, such as memory=20.")
    try:
        return key, parse_toml(f"value = {value}")["value"]
    except ValueError:
        return key, value
