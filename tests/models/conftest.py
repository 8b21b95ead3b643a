from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of a kind, created on first use; copy it before changing it."""
    root = tmp_path_factory.mktemp("checkpoints")

    def get(kind: str = "bert") -> Path:
        return root / kind if (root / kind).exists() else make_checkpoint(kind, root / kind)

    return get
