from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.workspace import Workspace, make_toy_scenario, world  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def toy(tmp_path_factory: Any) -> Workspace:
    """A suite of toy scenarios that no test changes."""
    folder: Path = tmp_path_factory.mktemp("toy")
    return make_toy_scenario(folder)
