from __future__ import annotations

from typing import Any

import pytest

from clbench.conformance.toys import make_checkpoint


@pytest.fixture(scope="session")
def bert(tmp_path_factory: Any) -> str:
    """Folder of a random BERT of one layer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "bert"
    make_checkpoint("bert", folder, layers=1)
    return str(folder)
