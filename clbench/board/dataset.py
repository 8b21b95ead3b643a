"""All cells of submissions as a dataset in the hub's layout.

Its card begins as https://huggingface.co/docs/hub/datasets-manual-configuration says.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from clbench.board.entries import MARKERS, cells_frame, read_entries
from clbench.core import __version__
from clbench.core.errors import RunFolderError, named
from clbench.core.files import (
    as_folder_error,
    check_folder,
    digest,
    read_file,
    user_path,
    write_atomically,
)
from clbench.core.options import checks_arguments
from clbench.report.files import render

MARK = "This dataset was written by clbench"


@checks_arguments
def write_dataset(
    folders: Sequence[str | Path], out: str | Path
) -> tuple[tuple[Path, Path], tuple[str, ...]]:
    """Write all cells as Parquet, and a card; return both files, and a line on each bad folder.

    ``datasets.load_dataset(out)`` reads it. Its fields are those of `clbench.board.load`, with the
    ``task_names`` and the score matrix ``R`` of each cell; `folders` are the same, too.

    Raises
    ------
    RunFolderError
        If no submission can be read, or `out` holds a submission or files of the user.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = user_path(out, named("out"))
    check_folder(out)
    card, data = out / "README.md", out / "data" / "cells.parquet"
    taken = [path for path in (card, data, *(out / name for name in MARKERS)) if path.exists()]
    with as_folder_error(card):
        if taken and not (card.exists() and MARK.encode() in read_file(card)):
            raise RunFolderError(f"{taken[0]} is in the way. Choose another {named('out')}.")
    entries, problems = read_entries(folders)
    cells = [c for each in entries for c in each.cells if c.reference_of is None]
    table = pa.Table.from_pandas(cells_frame(entries), preserve_index=False)
    names = pa.array([cell.tasks for cell in cells], pa.list_(pa.string()))
    scores = pa.array([cell.R for cell in cells], pa.list_(pa.list_(pa.float64())))
    table = table.append_column("task_names", names).append_column("R", scores)
    pq.write_table(table, file := io.BytesIO())
    write_atomically(data, content := file.getvalue())
    values = {"entries": entries, "mark": MARK, "version": __version__, "digest": digest(content)}
    write_atomically(card, render("dataset.md", "clbench.board", **values))
    return (card, data), tuple(problems)
