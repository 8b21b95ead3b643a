"""Options that several commands have, with one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clbench.cli.options import PRECISIONS

Suite = Annotated[
    str,
    typer.Argument(metavar="SUITE", help="A packaged suite (clbench list suites) or a suite file."),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME|DIR", help="Built-in model, folder of a model, or name on the hub."),
]
Data = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder that holds glue/ as the hub has it; else the hub."),
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="ROWS", help="At most so many rows of each split.")
]
Epochs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Passes over each task's rows.")
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(PRECISIONS), help="auto is bf16 where the hardware does it fast."
    ),
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Ray cluster: auto, host:port, ray://host:port."),
]
ReportOut = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the report.  [default: report in the first]"),
]
Formats = Annotated[
    str, typer.Option(metavar="A,B", help="Of the figures beside the page: png, svg, pdf.")
]
