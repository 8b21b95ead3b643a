from __future__ import annotations

from typing import Any

import pytest

from clbench.core.errors import SettingsError
from clbench.search import SearchSettings


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trials": 0}, "trials: must be greater than 0, got 0"),
        ({"grace": 0}, "grace: must be greater than 0"),
        ({"reduction": 1.0}, r"reduction: must be greater than 1, got 1\.0"),
        ({"seed": 2**32}, "seed: must be less than 4294967296"),
        ({"time_limit": 0.0}, "time_limit: must be greater than 0, got 0"),
        ({"searcher": "grid"}, "searcher: must be 'bayes' or 'random', got 'grid'"),
        ({"division": "x"}, "division: must be 'code' or 'paper', got 'x'"),
        ({"scheduler": "x"}, "scheduler: must be 'asha' or 'none', got 'x'"),
    ],
)
def test_wrong_settings_are_an_error(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        SearchSettings(**changes)
