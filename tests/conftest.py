from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Reports are drawn in the test's own process: test workers share the cores.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Test workers share the cores; several torch threads each would fight over them."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the user's cache out of the tests and the tests out of the user's cache."""
    os.environ["CLBENCH_CACHE"] = str(tmp_path_factory.getbasetemp() / "clbench-cache")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder with `glue/` in the hub repository's layout; skips when there is none."""
    named = os.environ.get("CLBENCH_TEST_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "glue").is_dir():
        pytest.skip("no real GLUE rows: set CLBENCH_TEST_DATA to a folder that holds glue/")
    return folder
