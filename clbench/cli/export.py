"""`clbench export`: audits and runs in the formats of others."""

from pathlib import Path
from typing import Annotated

from clbench.audit.export import EXPORTS, write_export
from clbench.cli.arguments import argument, choice, command
from clbench.cli.console import note, say
from clbench.core.errors import SettingsError
from clbench.core.options import Option, where

DATASET = "dataset"
"""The format of runs; the others are those of an audit."""


@command
def export(
    folders: Annotated[
        list[Path], argument("FOLDER", "An audit or its audit.json; for dataset, runs.")
    ],
    to: Annotated[str, Option(f"Format: {', '.join((DATASET, *EXPORTS))}.", "FORMAT")],
    out: Annotated[Path | None, where("Folder to write.", "DIR", default="FOLDER/FORMAT")] = None,
) -> int:
    """Write an audit in a format to publish, or the cells of runs as a dataset.

    An audit's export holds the texts of items only if the audit was made with --with-texts. The
    dataset has the layout of the Hugging Face hub: Parquet and a card. Exit code 1 if a run is bad.
    """
    if choice("--to", to, [DATASET, *EXPORTS]) == DATASET:
        from clbench.board.dataset import write_dataset  # imports pandas

        files, problems = write_dataset([*folders], out or folders[0] / DATASET)
        note(*problems)
        say(*map(str, files))
        return 1 if problems else 0
    if len(folders) > 1:
        raise SettingsError(
            f"--to {to}: takes one audit, got {len(folders)}. Export each by itself."
        )
    say(*map(str, write_export(folders[0], to, out)))
    return 0
