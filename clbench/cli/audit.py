"""`clbench audit`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clbench.cli.arguments import Data, Device, Plugins, flag, option

if TYPE_CHECKING:
    from clbench.audit.outcome import Audit, Comparison


def audit(
    base: Annotated[
        str,
        typer.Argument(metavar="BASE", help="Base model: built-in, a folder, or a hub name."),
    ],
    tuned: Annotated[
        list[str],
        typer.Argument(
            metavar="TUNED", help="Models tuned from it, or folders of their PEFT adapters."
        ),
    ],
    tasks: Annotated[
        list[str] | None,
        option(
            "A,B",
            "Tasks to audit, or suite files that define tasks.  [default: four built-in tasks]",
        ),
    ] = None,
    data: Data = None,
    corpus: Annotated[
        str,
        option("FILE|NAME", "Text for the language loss: one text per line, or wiki40b/en."),
    ] = "built-in",
    rows: Annotated[int, option("ROWS", "Maximum rows per task.")] = 500,
    margin: Annotated[
        float,
        option("X", "A change counts as kept if its interval lies within ±X (accuracy, nats)."),
    ] = 0.02,
    localise: Annotated[
        bool,
        flag("--localise", "Restore one layer at a time to find where the loss arises; slower."),
    ] = False,
    fail_if: Annotated[
        list[str] | None,
        option(
            "PART:X",
            "Exit with code 1 if a change in language, features or behaviour is below X and its "
            "interval below 0, such as features:-0.02; repeatable.",
        ),
    ] = None,
    out: Annotated[Path, option("DIR", "Folder of the page and audit.json.")] = Path("audit"),
    device: Device = "auto",
    plugin: Plugins = None,
) -> int:
    """Find out what fine-tuned models forgot of their base model.

    Compares language, features and behaviour item by item, and shows where the models moved. Writes
    a page and audit.json. Exit code 1 if --fail-if applies.
    """
    from clbench.audit.audit import audit as run
    from clbench.audit.items import DEFAULT_TASKS
    from clbench.audit.page import check_folder, failures, parse_condition, write_audit
    from clbench.cli.arguments import words
    from clbench.cli.console import duration, err
    from clbench.cli.console import out as stdout
    from clbench.suite.plugins import load_plugins

    conditions = [parse_condition(text) for text in words("--fail-if", fail_if) or ()]
    check_folder(out)
    load_plugins(plugin or ())
    console, start = err(), time.monotonic()
    with console.status(console.render_str("loading models")) as status:
        found = run(
            base,
            tuned,
            tasks=words("--tasks", tasks) or DEFAULT_TASKS,
            data=data,
            corpus=corpus,
            rows=rows,
            margin=margin,
            localise=localise,
            device=device,
            tell=lambda text: status.update(console.render_str(text)),
        )
        status.update(console.render_str("writing the page"))
        page = write_audit(found, out)
    _show(found)
    stdout().print(f"Page: {page} ({duration(time.monotonic() - start)})", soft_wrap=True)
    failed = failures(found, conditions)
    for line in failed:
        err().print(line, soft_wrap=True)
    return 1 if failed else 0


def _show(audit: Audit) -> None:
    from clbench.audit.page import REMEDY, between, certainty, headline
    from clbench.cli.console import out
    from clbench.core.errors import printable

    for line in audit.notes:
        out().print(printable(line), soft_wrap=True)
    for model in audit.models:
        out().print(headline(model.name, model.comparison), soft_wrap=True)
        _show_lines(model.comparison)
        for line in model.notes:
            out().print(f"  {printable(line)}", soft_wrap=True)
    for pair in audit.between:
        out().print(between(pair), soft_wrap=True)
        _show_lines(pair.comparison, brief=True)
    if audit.between:
        out().print("Between models, forgot: the first is worse than the second.", soft_wrap=True)
    out().print(certainty(audit), soft_wrap=True)
    if any(model.comparison.word == "forgot" for model in audit.models):
        out().print(REMEDY, soft_wrap=True)


def _show_lines(comparison: Comparison, *, brief: bool = False) -> None:
    """Print a line for each change; with `brief`, one for all that are unclear."""
    from rich.table import Table

    from clbench.audit.page import verdict
    from clbench.cli.console import out, show_table

    table = Table(box=None, show_header=False, pad_edge=True, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    lines = verdict(comparison)
    shown = [line for line in lines if not (brief and line.word == "unclear")]
    for line in shown:
        table.add_row(f"  {line.word}", line.about, line.numbers)
    if shown:
        show_table(out(), table)
    if unclear := [line.about for line in lines if line not in shown]:
        out().print(f"  unclear  {'; '.join(unclear)}", soft_wrap=True)
