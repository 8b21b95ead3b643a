"""The papers' tables as they are printed."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
from helpers.handmade import pair

from clbench.results.cell import CellResult
from clbench.results.published import compare_published, published
from clbench.suite.baselines import read_baseline
from clbench.suite.read import read_suite
from clbench.tasks.registry import TASKS

FRAME = published()


def test_every_value_has_its_source_and_is_a_fraction() -> None:
    assert FRAME["value"].between(0.15, 1.0).all()
    for column in ("source", "table", "method", "score", "statistic", "model", "split", "protocol"):
        assert FRAME[column].astype(bool).all(), column
    place = [
        "suite",
        "table",
        "source",
        "scenario",
        "task",
        "method",
        "score",
        "statistic",
        "model",
    ]
    assert not FRAME.duplicated(place).any()
    assert (FRAME["suite"].astype(bool) == FRAME["scenario"].astype(bool)).all()
    assert set(FRAME["score"]) == {"p_o_before", "p_o", "p_s", "average"}


def test_scenarios_and_methods_are_ours() -> None:
    for suite, rows in FRAME[FRAME["suite"] != ""].groupby("suite"):
        file = read_suite(str(suite))
        matches = [set(fnmatch.filter(file.scenario_names, name)) for name in rows["scenario"]]
        assert all(matches)
        if suite != "sequence-5":  # whose own heads are no paper's
            assert set.union(*matches) == set(file.scenario_names)
        for method in set(rows["method"]) - {"bertcl"} - set(file.file.baseline):
            assert read_baseline(method)


def test_single_tasks_use_our_metrics() -> None:
    chosen = read_suite("recadam-glue").file.protocol.task_metric
    for _, row in FRAME[FRAME["suite"] == "recadam-glue"].iterrows():
        task = TASKS.get(f"glue/{row['scenario']}")
        assert row["metric"] == chosen.get(row["task"], task.metrics[0])
        assert row["task"] == f"glue/{row['scenario']}"


@pytest.mark.parametrize(
    ("table", "method", "averages"),
    [
        ("Table 2", "vanilla", (0.809, 0.879)),
        ("Table 2", "ewc-mlm", (0.759, 0.875)),
        ("Table 2", "bertcl", (0.833, 0.873)),
        ("Table 2", "bertcl-combined", (0.820, 0.867)),
        ("Table 3", "vanilla", (0.620, 0.799)),
        ("Table 3", "ewc-mlm", (0.616, 0.807)),
        ("Table 3", "bertcl-combined", (0.678, 0.767)),
    ],
)
def test_averages_match_those_that_kenneweg_prints(
    table: str, method: str, averages: tuple[float, float]
) -> None:
    theirs = FRAME[FRAME["source"].str.contains("Kenneweg") & (FRAME["suite"] != "")]
    some = theirs[(theirs["table"] == table) & (theirs["method"] == method)]
    for score, average in zip(("p_o", "p_s"), averages, strict=True):
        # Printed averages are of unrounded scores, and rounded themselves.
        assert some[some["score"] == score]["value"].mean() == pytest.approx(average, abs=0.0011)


@pytest.mark.parametrize(
    ("model", "method", "statistic", "average"),
    [
        ("bert-base-uncased", "vanilla", "median", 0.836),
        ("bert-base-uncased", "recadam-ri", "median", 0.846),
        ("bert-base-uncased", "vanilla", "maximum", 0.842),
        ("bert-base-uncased", "recadam-ri", "maximum", 0.853),
        ("albert-xxlarge-v2", "vanilla", "median", 0.895),
        ("albert-xxlarge-v2", "recadam-ri", "median", 0.902),
        ("albert-xxlarge-v2", "vanilla", "maximum", 0.902),
        ("albert-xxlarge-v2", "recadam-ri", "maximum", 0.911),
    ],
)
def test_averages_match_those_that_recadam_prints(
    model: str, method: str, statistic: str, average: float
) -> None:
    some = FRAME[
        FRAME["source"].str.contains("Chen")
        & (FRAME["table"] == "Table 1")
        & (FRAME["model"] == model)
        & (FRAME["method"] == method)
        & (FRAME["statistic"] == statistic)
    ]
    assert len(some) == 8
    assert some["value"].mean() == pytest.approx(average, abs=0.0011)


def test_inferred_scenarios_are_marked() -> None:
    unseen = FRAME[FRAME["suite"] == "paper-unseen"]
    inferred = unseen[unseen["note"].str.startswith("inferred")]
    assert set(inferred["scenario"]) == {"sst2-mnli", "mrpc-rte", "mrpc-qnli"}


def test_a_mean_over_orders_needs_all_of_them() -> None:
    def cell(order: int, seed: int, average: float) -> CellResult:
        name, tasks = f"four-tasks-{order}", ["ag_news", "amazon_full"]
        matrix: list[list[float | None]] = [[average, None], [average, average]]
        return pair("o-lora", seed, matrix, scenario=name, tasks=tasks, scores={"average": average})

    cells = [cell(1, 0, 0.6), cell(2, 0, 0.7), cell(3, 0, 0.9), cell(3, 1, 0.8)]
    row = compare_published("sequence-4", cells).iloc[0]
    assert (row["scenario"], row["published"], row["seeds"]) == ("four-tasks-*", 0.758, 2)
    assert row["ours"] == pytest.approx(0.75)
    assert row["differs"].startswith("model tiny, theirs t5-large; ")
    assert "mean of 2 seeds, theirs one run" in row["differs"]
    assert compare_published("sequence-4", cells[1:]).empty


@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        ({"limit": 1000, "limit_per": "class"}, ""),
        ({"limit": 1000}, "at most 1000 rows a split, theirs at most 1000 rows a class"),
        ({}, "all rows, theirs at most 1000 rows a class"),
    ],
)
def test_numbers_of_rows_are_compared_with_those_of_the_suite(
    protocol: dict[str, Any], text: str
) -> None:
    cells = [
        pair(
            "o-lora",
            0,
            [[0.5, None], [0.5, 0.5]],
            scenario=f"four-tasks-{order}",
            tasks=["ag_news", "amazon_full"],
            scores={"average": 0.5},
            settings={"protocol": protocol},
        )
        for order in (1, 2, 3)
    ]
    (differs,) = compare_published("sequence-4", cells)["differs"]
    assert ("rows" in differs) is bool(text)
    assert text in differs


def test_a_comparison_uses_the_statistic_of_the_table_and_names_differences() -> None:
    def rte(seed: int, p_s: float, **changes: Any) -> CellResult:
        base = pair("recadam-ri", seed).model_dump()
        stage = {
            "task": "glue/rte", "rows": 9, "steps": 7800, "epochs": 1.0, "examples": 9,
            "tokens": 9, "train_seconds": 1.0,
        }  # fmt: skip
        fields = {
            "scenario": "rte", "shift": "pretraining", "model": "bert-base-uncased",
            "key": f"rte--recadam-ri--seed{seed}", "R": [[0.5, None], [0.4, p_s]],
            "tasks": ["pretraining", "glue/rte"], "scores": {"p_s": p_s}, "stages": [stage],
            "train_seconds": 1.0,
            "settings": {"protocol": {}},
        }  # fmt: skip
        return CellResult.model_validate({**base, **fields, **changes})

    cells = [rte(seed, p_s) for seed, p_s in enumerate((0.70, 0.72, 0.80, 0.71, 0.60))]
    frame = compare_published("recadam-glue", cells)
    assert set(frame["method"]) == {"recadam-ri"}
    rows = {(row["table"], row["statistic"]): row for _, row in frame.iterrows()}
    assert set(rows) == {("Table 1", "median"), ("Table 1", "maximum"), ("Table 2", "median")}
    median, maximum = rows["Table 1", "median"], rows["Table 1", "maximum"]
    assert (median["published"], median["ours"]) == (0.744, 0.71)
    assert (maximum["published"], maximum["ours"]) == (0.773, 0.80)
    fixed = "k and t0 fixed, theirs chosen by task on the reported split"
    assert median["differs"] == fixed
    stages = [{**cells[0].stages[0].model_dump(), "steps": 20}]
    settings = {"protocol": {"lr": 1e-3, "max_length": 128}}
    short = [rte(0, 0.7, stages=stages, model="mine", settings=settings)]
    other = compare_published("recadam-glue", short).iloc[0]
    assert other["differs"] == (
        "model mine, theirs bert-base-uncased; 1 seed, theirs 5 runs; 20 steps, theirs 7800; "
        f"lr 0.001, theirs 2e-05; {fixed}"
    )
    albert = compare_published("recadam-glue", [rte(0, 0.7, model="albert-xxlarge-v2")])
    assert set(albert["published"]) == {0.893, 0.917}
