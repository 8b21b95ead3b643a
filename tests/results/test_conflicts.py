from __future__ import annotations

from typing import Any

import pytest
from handmade import Asked, Scenario, pair

from clbench.results.cell import CellResult
from clbench.results.conflicts import conflicts


def differences(asked: Asked, *present: CellResult) -> list[str]:
    cells: Any = [asked]
    return list(conflicts(cells, present).values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"settings": {"importance": 675.0}}}, "importance = not set, now 675.0"),
        ({"method": {"name": "ewc"}}, "name = 'vanilla', now 'ewc'"),
        ({"method": {"source": "d"}}, "a different implementation of the method"),
        ({"model": {"files": {}}}, "a different model or different weights"),
        ({"tasks": {"glue/mrpc": {"digest": "z"}}}, "different rows of glue/mrpc"),
        ({"files": {"split": "e"}}, "a different content of its split file"),
        ({"protocol": {"limit": 100}}, "limit = None, now 100"),
        ({}, "other settings"),
    ],
)
def test_the_first_difference_is_described(
    changes: dict[str, dict[str, object]], words: str
) -> None:
    asked = Asked(fingerprint="f1", changes=changes)
    assert differences(asked, pair()) == [f"was run with {words}"]


def test_equal_fingerprints_do_not_conflict() -> None:
    assert differences(Asked(), pair()) == []


def test_all_cells_of_a_scenario_share_the_protocol_but_not_the_method() -> None:
    present = pair("vanilla"), pair("vanilla", 1)
    asked = Asked("sst2-mrpc--ewc--seed0", "f9", changes={"protocol": {"limit": 100}})
    assert differences(asked, *present) == ["was run with limit = None, now 100"] * 2
    other = {"method": {"name": "ewc", "settings": {"importance": 1.0}}}
    assert differences(Asked("sst2-mrpc--ewc--seed0", "f9", changes=other), *present) == []


def test_scenarios_of_one_run_share_the_protocol_but_not_the_tasks() -> None:
    scenario = Scenario("qnli-rte", settings={"tasks": ["glue/qnli", "glue/rte"]})
    changes: dict[str, dict[str, Any]] = {
        "tasks": {"glue/qnli": {"digest": "q"}},
        "scenario": {"name": "qnli-rte"},
        "protocol": {"task_epochs": {"glue/qnli": 5}},
    }
    asked = Asked("qnli-rte--vanilla--seed0", "f9", scenario, changes=changes)
    assert differences(asked, pair()) == []
    changes["protocol"] = {"lr": 1e-4}
    assert differences(asked, pair()) == ["was run with lr = 2e-05, now 0.0001"]


def test_cells_without_a_recipe_are_compared_by_fingerprint_only() -> None:
    old = pair(recipe={})
    assert differences(Asked("sst2-mrpc--ewc--seed0", "f9"), old) == []
    assert differences(Asked(fingerprint="f1"), old) == ["was run with other settings"]
