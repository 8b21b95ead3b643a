from __future__ import annotations

from pathlib import Path

import pytest
from helpers.cell import Cell
from helpers.checkpoints import make_checkpoint

from clbench.methods.base import Vanilla


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of three layers."""
    return make_checkpoint("bert", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def vanilla(folder: Path) -> Cell:
    """A cell trained by vanilla, for comparison; do not train it further."""
    return Cell(folder, Vanilla()).run()
