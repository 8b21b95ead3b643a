from __future__ import annotations

from typing import Any

import pytest

from clbench.errors import SettingsError
from clbench.search.baseline import FoundOn
from clbench.search.space import Space, usual_groups


@pytest.mark.parametrize(("depth", "groups"), [(12, 10), (8, 10), (6, 8), (1, 3)])
def test_ten_groups_or_one_a_layer(depth: int, groups: int) -> None:
    assert usual_groups(depth) == groups
    space = Space(FoundOn(2e-5, depth), groups)
    assert len(space.names) == len(space.keys) == groups
    assert "no layer" not in space.names  # a rate that trains nothing would be searched in vain
    assert space.flat == [2e-5] * groups


def test_there_and_back() -> None:
    space = Space(FoundOn(2e-5, 12), 4)
    rates = [1e-7, 1e-5, 3e-4, 1e-3]
    assert space.rates(space.config(rates)) == rates


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"groups": 2}, "--groups 2: must be from 3 to 14"),
        ({"groups": 15}, "the model has 12 layers"),
        ({"lowest": 1e-3, "highest": 1e-7}, "in this order"),
        ({"lowest": 0.0}, "must be above 0"),
        ({"highest": 2.0}, "at most 1"),
        ({"lowest": 1e-4}, "flat rate 2e-05, which the first trial has, lies outside"),
    ],
)
def test_wrong_spaces(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Space(FoundOn(2e-5, 12), **{"groups": 10, **changes})
