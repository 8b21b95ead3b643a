"""`clbench export`: audits in the formats of others."""

from pathlib import Path
from typing import Annotated

from clbench.audit.export import EXPORTS, write_export
from clbench.cli.arguments import argument, choice, command
from clbench.cli.console import say
from clbench.core.options import Option, where


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
