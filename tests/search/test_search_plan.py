from __future__ import annotations

from typing import Any

import pytest

from clbench.core.errors import SettingsError
from clbench.search import SearchSettings


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trials": 0}, "trials=0: must be 1 or more"),
        ({"grace": 0}, "grace=0"),
        ({"reduction": 1.0}, "reduction=1.0: must be above 1"),
        ({"seed": 2**32}, "seed=4294967296: must be from 0 to 4294967295"),
        ({"time_limit": 0.0}, "time_limit=0.0: must be above 0 seconds"),
        ({"searcher": "grid"}, "searcher: must be 'bayes' or 'random', got 'grid'"),
        ({"division": "x"}, "division: must be 'code' or 'paper', got 'x'"),
        ({"scheduler": "x"}, "scheduler: must be 'asha' or 'none', got 'x'"),
    ],
)
def test_wrong_settings_are_an_error(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        SearchSettings(**changes)
