from __future__ import annotations

from typing import Any

import pytest
from helpers.handmade import Baseline, PlannedCell, Scenario, pair, recipe

from clbench.results.cell import CellResult
from clbench.results.resume import conflicts
from clbench.suite.baselines import read_baseline


def differences(planned: PlannedCell, *results: CellResult) -> list[str]:
    cells: Any = [planned]
    return list(conflicts(cells, results).values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"settings": {"importance": 675.0}}}, "importance = not set, now 675.0"),
        ({"method": {"name": "ewc"}}, "name = 'vanilla', now 'ewc'"),
        ({"method": {"source": "d"}}, "a different implementation of the method"),
        ({"method": {"version": 2}}, "a clbench version that trains differently"),
        ({"model": {"files": {}}}, "a different model or different weights"),
        ({"tasks": {"glue/mrpc": {"digest": "z"}}}, "different rows of glue/mrpc"),
        ({"files": {"split": "e"}}, "different content in its split file"),
        ({"protocol": {"limit": 100}}, "limit = None, now 100"),
        ({"scenario": {"tasks": ["glue/mrpc", "glue/sst2"]}}, "another order of tasks"),
        ({"scenario": {"tasks": ["glue/mrpc"]}}, "tasks = ['glue/sst2', 'glue/mrpc'], now ['glue/"),
        ({}, "other settings"),
    ],
)
def test_the_first_difference_is_described(
    changes: dict[str, dict[str, object]], words: str
) -> None:
    planned = PlannedCell(fingerprint="f1", changes=changes)
    old = pair(recipe=recipe(scenario={"tasks": ["glue/sst2", "glue/mrpc"]}))
    (difference,) = differences(planned, old)
    assert difference.startswith(f"was run with {words}")


def test_equal_fingerprints_do_not_conflict() -> None:
    assert differences(PlannedCell(), pair()) == []


def test_all_cells_of_a_scenario_share_the_protocol_but_not_the_method() -> None:
    results = pair("vanilla"), pair("vanilla", 1)
    planned = PlannedCell("sst2-mrpc--ewc--seed0", "f9", changes={"protocol": {"limit": 100}})
    assert differences(planned, *results) == ["was run with limit = None, now 100"] * 2
    other = {"method": {"name": "ewc", "settings": {"importance": 1.0}}}
    ewc = PlannedCell("sst2-mrpc--ewc--seed0", "f9", baseline=Baseline("ewc"), changes=other)
    assert differences(ewc, *results) == []


def test_cells_of_a_baseline_share_its_settings_over_seeds_and_scenarios() -> None:
    recipes = [recipe(method={"name": "ewc", "settings": {"importance": x}}) for x in (1.0, 2.0)]
    old = [pair("ewc", 0, recipe=some) for some in recipes]
    changes = {"method": {"name": "ewc", "settings": {"importance": 2.0}}}
    for key in ("sst2-mrpc--ewc--seed1", "qnli-rte--ewc--seed0"):
        scenario = Scenario(key.partition("--")[0])
        new = PlannedCell(key, "f9", scenario, Baseline("ewc"), changes=changes)
        assert differences(new, old[0]) == ["was run with importance = 1.0, now 2.0"]
        assert differences(new, old[1]) == []


def test_scenarios_of_one_run_share_the_protocol_but_not_the_tasks() -> None:
    scenario = Scenario("qnli-rte", settings={"tasks": ["glue/qnli", "glue/rte"]})
    changes: dict[str, dict[str, Any]] = {
        "tasks": {"glue/qnli": {"digest": "q"}},
        "scenario": {"name": "qnli-rte"},
        "protocol": {"task_epochs": {"glue/qnli": 5}},
    }
    planned = PlannedCell("qnli-rte--vanilla--seed0", "f9", scenario, changes=changes)
    assert differences(planned, pair()) == []
    changes["protocol"] = {"lr": 1e-4}
    assert differences(planned, pair()) == ["was run with lr = 2e-05, now 0.0001"]


@pytest.mark.parametrize(
    ("key", "value"), [("task_batch_size", 8), ("task_metric", "f1"), ("task_steps", 9)]
)
def test_scenarios_differ_in_settings_of_their_tasks(key: str, value: Any) -> None:
    scenario = Scenario("qnli-rte", settings={"tasks": ["glue/qnli", "glue/rte"]})
    changes = {"scenario": {"name": "qnli-rte"}, "protocol": {key: {"glue/qnli": value}}}
    planned = PlannedCell("qnli-rte--vanilla--seed0", "f9", scenario, changes=changes)
    assert differences(planned, pair()) == []


@pytest.mark.parametrize(("online", "wrong"), [(True, []), (False, ["was run with epochs"])])
def test_a_scenario_with_one_pass_has_its_own_epochs(online: bool, wrong: list[str]) -> None:
    scenario = Scenario("qnli-rte", settings={"tasks": ["glue/qnli", "glue/rte"]})
    changes = {"scenario": {"name": "qnli-rte", "online": online}, "protocol": {"epochs": 7}}
    planned = PlannedCell("qnli-rte--vanilla--seed0", "f9", scenario, changes=changes)
    assert [text.partition(" =")[0] for text in differences(planned, pair())] == wrong


def corpora(method: str, protocol: dict[str, Any], **changes: Any) -> list[str]:
    """Return how a cell of another seed differs, whose corpus was another one."""
    own = {"method": {"name": method}, "protocol": protocol, **changes}
    old = pair(method, 1, recipe=recipe(corpus={"file": "a"}, **own))
    changed = {**own, "corpus": {"file": "b"}}
    key = f"sst2-mrpc--{method}--seed0"
    return differences(PlannedCell(key, "f9", baseline=read_baseline(method), changes=changed), old)  # type: ignore[arg-type]


def test_cells_of_other_prompts_share_no_table() -> None:
    templates, general = {"glue/sst2": {"prompt": "p"}}, {"glue/qnli": [{"digest": "q"}, {}]}
    old = pair("vanilla", 1, recipe=recipe(templates=templates, capability_tasks=general))
    for changes, words in (
        ({"templates": {"glue/sst2": {"prompt": "q"}}}, "other prompts or answers of glue/sst2"),
        (
            {"capability_tasks": {"glue/qnli": [{"digest": "q"}, {"prompt": "p"}]}},
            "other rows, prompts or answers of glue/qnli",
        ),
    ):
        same = {"templates": templates, "capability_tasks": general}
        planned = PlannedCell(fingerprint="f9", changes={**same, **changes})  # type: ignore[dict-item]
        assert differences(planned, old) == [f"was run with {words}"]
    scenario = Scenario("qnli-rte", settings={"tasks": ["glue/qnli", "glue/rte"]})
    other = {"templates": {"glue/qnli": {"prompt": "q"}}, "capability_tasks": general}
    assert differences(PlannedCell("q--vanilla--seed0", "f9", scenario, changes=other), old) == []


def test_cells_that_read_another_corpus_share_no_table() -> None:
    another = ["was run with another corpus"]
    assert corpora("vanilla", {"capability_rows": 8}) == another
    assert corpora("vanilla", {}, scenario={"shift": "pretraining"}) == another
    assert corpora("vanilla", {}, shift="digest of a plug-in") == another
    assert corpora("generic-replay", {}) == another
    assert corpora("vanilla", {}) == []
    assert corpora("kl-anchor", {}) == []  # at prompts


def test_a_method_that_reads_a_corpus_joins_cells_that_do_not() -> None:
    old = pair("vanilla", recipe=recipe(corpus={"file": "a"}))
    changes = {"corpus": {"file": "b"}, "method": {"name": "generic-replay"}}
    baseline: Any = read_baseline("generic-replay")
    key = "sst2-mrpc--generic-replay--seed0"
    assert differences(PlannedCell(key, "f9", baseline=baseline, changes=changes), old) == []


def test_cells_without_a_recipe_are_compared_by_fingerprint_only() -> None:
    old = pair(recipe={})
    assert differences(PlannedCell("sst2-mrpc--ewc--seed0", "f9"), old) == []
    assert differences(PlannedCell(fingerprint="f1"), old) == ["was run with other settings"]
