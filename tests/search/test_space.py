from __future__ import annotations

from typing import Any

import pytest

from clbench.core.errors import SettingsError
from clbench.search import SearchSettings
from clbench.search.space import SearchOrigin, SearchSpace


def test_groups_are_named_from_embeddings_to_head() -> None:
    names = SearchOrigin(depth=3).group_names(5)
    assert names == ["embeddings", "layer 0", "layer 1", "layer 2", "head"]
    assert SearchOrigin(depth=12).group_names(10)[1:3] == ["layers 0, 1", "layer 2"]


def test_rates_survive_conversion_to_config() -> None:
    space = SearchSpace(SearchOrigin(2e-5, 12), 4)
    rates = [1e-7, 1e-5, 3e-4, 1e-3]
    assert space.rates(space.config(rates)) == rates
    assert space.flat == [2e-5] * 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"groups": 2}, "--groups 2: must be from 3 to 14"),
        ({"groups": 15}, "the model has 12 layers"),
        ({"lowest": 1e-3, "highest": 1e-7}, "--lowest the smaller one"),
        ({"highest": 2.0}, "at most 1"),
        ({"lowest": 1e-4}, "flat rate 2e-05 of the first trial lies outside"),
    ],
)
def test_wrong_space_is_an_error(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        SearchSpace(SearchOrigin(2e-5, 12), **{"groups": 10, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trials": 0}, "--trials 0: must be 1 or more"),
        ({"grace": 0}, "--grace 0"),
        ({"reduction": 1.0}, "--reduction 1.0: must be above 1"),
        ({"seed": 2**32}, "--seed 4294967296: must be from 0 to 4294967295"),
        ({"time_limit": 0.0}, "--time-limit 0.0: must be above 0 seconds"),
        ({"searcher": "grid"}, "--searcher 'grid': must be bayes or random"),
    ],
)
def test_wrong_settings_are_an_error(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        SearchSettings(**changes)
