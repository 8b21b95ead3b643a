"""`clbench audit`."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clbench.cli.arguments import Data, Device, Plugins, flag, option, words
from clbench.cli.console import duration, err, show_table, working
from clbench.cli.console import out as stdout
from clbench.core.errors import SettingsError, printable
from clbench.suite.plugins import load_plugins

if TYPE_CHECKING:
    from clbench.audit.audit import Audit
    from clbench.audit.changes import Comparison

PARTS = ("language", "features", "behaviour")


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
    from clbench.audit.page import check_folder, write_audit

    conditions = [parse_condition(text) for text in words("--fail-if", fail_if) or ()]
    check_folder(out)
    load_plugins(plugin or ())
    start = time.monotonic()
    with working("loading models") as tell:
        audited = run(
            base,
            tuned,
            tasks=words("--tasks", tasks) or DEFAULT_TASKS,
            data=data,
            corpus=corpus,
            rows=rows,
            margin=margin,
            localise=localise,
            device=device,
            tell=tell,
        )
        tell("writing the page")
        page = write_audit(audited, out)
    _show(audited)
    stdout().print(f"Page: {page} ({duration(time.monotonic() - start)})", soft_wrap=True)
    failed = [line for condition in conditions for line in failures(audited, *condition)]
    for line in failed:
        err().print(line, soft_wrap=True)
    return 1 if failed else 0


def parse_condition(text: str) -> tuple[str, float]:
    """Return part and number of a condition such as ``features:-0.02``.

    Raises
    ------
    SettingsError
        If it has another form, or the number is not below 0.
    """
    part, _, number = text.partition(":")
    try:
        least = float(number)
    except ValueError:
        least = 0.0
    if part.strip() in PARTS and -100.0 <= least < 0.0:
        return part.strip(), least
    raise SettingsError(
        f"--fail-if {text!r}: must be PART:X. PART is one of {', '.join(PARTS)}, and X is a number "
        "from -100 to below 0, such as features:-0.02."
    )


def failures(audit: "Audit", part: str, least: float) -> Iterator[str]:
    """Yield a line for each change of `part` that is below `least`, and its interval below 0."""
    for model in audit.models:
        for each in model.comparison.measures:
            if each.part == part and each.change.difference < least and each.change.high < 0:
                yield (
                    f"--fail-if {part}:{least:g}: {printable(model.name)} fails on {each.title}, "
                    f"{each.change}."
                )


def _show(audit: "Audit") -> None:
    from clbench.audit.page import explanation, headline, remedy

    for line in audit.notes:
        stdout().print(printable(line), soft_wrap=True)
    for model in audit.models:
        stdout().print(headline(model), soft_wrap=True)
        _show_measures(model.comparison)
        for line in model.notes:
            stdout().print(f"  {printable(line)}", soft_wrap=True)
    for pair in audit.between:
        title = f"{printable(pair.second)} compared with {printable(pair.first)}:"
        stdout().print(title, soft_wrap=True)
        _show_measures(pair.comparison, between=True)
    for line in (*explanation(audit), remedy(audit)):
        if line:
            stdout().print(line, soft_wrap=True)


def _show_measures(comparison: "Comparison", *, between: bool = False) -> None:
    """Print a line for each measure; `between` tuned models, one for all without a difference."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=True, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    rest = []
    for each in comparison.measures:
        if between and each.change.verdict == "no difference shown":
            rest.append(each.title)
        else:
            word = each.change.verdict if between else each.change.word
            table.add_row(f"  {word}", each.title, str(each))
    if table.row_count:
        show_table(stdout(), table)
    if rest:
        stdout().print(f"  no difference shown  {'; '.join(rest)}", soft_wrap=True)
