"""`clbench export` and `schema`: audits in the formats of others, and the formats of clbench."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from clbench.audit.export import EXPORTS, write_export
from clbench.cli.arguments import argument, choice, command
from clbench.cli.console import say
from clbench.core.options import Option, where

SCHEMAS = ("audit", "cell", "suite")


@command
def export(
    audit: Annotated[Path, argument("AUDIT", "Folder of an audit, or its audit.json.")],
    to: Annotated[str, Option(f"Format: {', '.join(EXPORTS)}.", "FORMAT")],
    out: Annotated[Path | None, where("Folder to write.", "DIR", default="AUDIT/FORMAT")] = None,
) -> int:
    """Write an audit in a format to publish.

    It holds the texts of items only if the audit was made with --with-texts.
    """
    say(*map(str, write_export(audit, choice("--to", to, EXPORTS.names()), out)))
    return 0


@command
def schema(
    kind: Annotated[str, argument("|".join(SCHEMAS), "What to describe.", lambda: SCHEMAS)],
) -> int:
    """Print the JSON Schema of audit.json, of a run's cells or of suite files."""
    name = f"{choice('schema', kind, SCHEMAS)}.json"
    print((files("clbench") / "schemas" / name).read_text("utf-8"), end="")
    return 0
