from __future__ import annotations

import pytest

from clbench.conformance.toy_scenario import checkpoint


@pytest.fixture(scope="session")
def bert() -> str:
    """Folder of the tiny random BERT."""
    return checkpoint("bert")
