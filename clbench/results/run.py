"""A run's folder and its cells, with tables of their scores."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clbench.results.cell import CellResult
from clbench.results.score_tables import scores_frame, summary
from clbench.results.store import Store

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """A run's folder and its cells, finished or failed.

    The cells, references included, are sorted by scenario, method and seed.
    """

    path: Path
    cells: tuple[CellResult, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per cell, with the columns of ``scores.csv``."""
        return scores_frame(self.cells, Store(self.path).questions()[-1].reference)

    @property
    def summary(self) -> pd.DataFrame:
        """Mean and sample standard deviation over seeds, one row per scenario × method."""
        return summary(self.frame)

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """The cells that failed; each has its `reason`."""
        return tuple(cell for cell in self.cells if cell.status == "failed")


def load_run(path: str | Path) -> Run:
    """Load a run from its folder, with a warning for each file that is not a valid cell.

    Raises
    ------
    RunFolderError
        If the folder holds no run, or a file from a newer version of clbench.
    """
    store = Store(Path(path))
    store.require()
    folder = store.read()
    for line in folder.broken_lines(()):
        warnings.warn(line, stacklevel=2)
    return Run(store.out, tuple(folder.cells))
