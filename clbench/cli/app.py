"""The verbs of the command line."""

from __future__ import annotations

import typer

from clbench.cli.check import check
from clbench.cli.combine import combine
from clbench.cli.list import listing
from clbench.cli.report import compare, report
from clbench.cli.run import run
from clbench.cli.search import search

# Plain help: it is read in logs and narrow windows too, and takes a third of the time.
app = typer.Typer(
    name="clbench",
    help="Which way of fine-tuning forgets least, at what cost, and is the difference real?",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def _top(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
) -> int | None:
    if version:
        from clbench import __version__

        typer.echo(f"clbench {__version__}")
        raise typer.Exit
    return None


app.command("run")(run)
app.command("search")(search)
app.command("list")(listing)
app.command("report")(report)
app.command("compare")(compare)
app.command("check")(check)
app.command("combine")(combine)
