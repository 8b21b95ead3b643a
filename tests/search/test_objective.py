"""A trial trains as the run does that its rates are for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from workspace import Workspace, rows, write_rows

import clbench
from clbench.evaluation.cell_runner import start_model
from clbench.evaluation.prepare import ScenarioPreparer
from clbench.search import SearchPlan, SearchSettings, make_search
from clbench.search.objective import Pair, try_rates
from clbench.suite.options import RunOptions

RATES = [1e-3, 2e-3, 5e-4, 3e-3]


def plan_of(world: Workspace, scenario: str = "mood-thing", **settings: Any) -> SearchPlan:
    return make_search(
        world.suite,
        scenario,
        SearchSettings(**settings, highest=1e-2),
        RunOptions(plugins=[world.plugin], device="cpu"),
    )


def pair_of(plan: SearchPlan) -> Pair:
    run = plan.run
    builder = ScenarioPreparer(
        run.protocol, data=None, base=run.base, own=run.suite.file.task,
        device=__import__("torch").device("cpu"), saved=None,
    )  # fmt: skip
    cell = run.cells[0]
    scene = builder.prepare(cell.scenario)
    model = start_model(cell, scene)
    return Pair(run, cell, scene, model, {"division": "code"}, 1, clbench.__version__)


def reports_of(plan: SearchPlan, rates: list[float] = RATES) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []

    def report(metrics: Mapping[str, Any]) -> None:
        told.append(dict(metrics))

    try_rates(rates, pair_of(plan), report)
    return told


def test_an_epoch_a_report_and_the_scores_of_a_run_with_these_rates(world: Workspace) -> None:
    told = reports_of(plan_of(world))
    assert [(r["epoch"], r["stage"], r["stage_epoch"]) for r in told] == [
        (1, 0, 1), (2, 0, 2), (3, 0, 3), (4, 0, 4), (5, 1, 1), (6, 1, 2), (7, 1, 3), (8, 1, 4),
    ]  # fmt: skip
    assert [len(r["scores"]) for r in told] == [1] * 4 + [2] * 4
    assert all(r["reward"] == pytest.approx(sum(r["scores"])) for r in told)
    # The same by way of a suite that is scored on the held-out rows.
    text = world.suite.read_text().replace("curve_points = 3", 'score_on = "tuning"')
    world.suite.write_text(text)
    world.write("mine.toml", f'method = "layerwise"\n[settings]\nrates = {RATES}\n')
    run = world.run(methods=[str(world.folder / "mine.toml")], device="cpu", threads=1)
    scores = run.cells[0].scores
    assert told[3]["scores"] == [scores["p_o_before"]]
    assert told[-1]["scores"] == [scores["p_o"], scores["p_s"]]


def test_what_is_reported_is_not_what_is_searched_on(world: Workspace) -> None:
    """Other validation rows change no reward, unless one asks for the paper's choice."""
    before = reports_of(plan_of(world))
    on_paper = reports_of(plan_of(world, paper_split=True))
    write_rows(
        world.folder / "thing-dev.csv",
        rows(7, 80, lambda words: "story" if "film" in words else "film"),
    )
    write_rows(
        world.folder / "mood-dev.csv",
        rows(8, 80, lambda words: "down" if "good" in words else "up"),
    )
    after = reports_of(plan_of(world))
    assert [r["scores"] for r in before] == [r["scores"] for r in after]
    again = reports_of(plan_of(world, paper_split=True))
    assert [r["scores"] for r in on_paper] != [r["scores"] for r in again]


def test_rows_held_out_are_not_trained_on(world: Workspace) -> None:
    scene = pair_of(plan_of(world)).scene
    for task, train, scored in zip(scene.scenario.tasks, scene.train, scene.scored, strict=True):
        assert len(train.rows) + len(scored.rows) == 160  # all come from the training file
        assert task.tuning is not None
        assert len(task.tuning) == len(scored.rows)


def test_equal_heads_for_all_rates_and_the_model_unchanged_elsewhere(world: Workspace) -> None:
    """The model that trials are given is sent, so each has a copy; one here is trained itself."""
    plan = plan_of(world)
    first, second = pair_of(plan), pair_of(plan)
    for (name, a), (_, b) in zip(
        first.model.named_parameters(), second.model.named_parameters(), strict=True
    ):
        assert a.equal(b), name


def test_what_goes_wrong_is_a_report(world: Workspace) -> None:
    told = reports_of(plan_of(world), [1e-3] * 2)  # no three groups
    assert len(told) == 1
    assert told[0]["reward"] == -2.0
    assert told[0]["epoch"] == 1
    assert "rates" in told[0]["failure"]


def test_a_worker_of_another_version(world: Workspace, tmp_path: Path) -> None:
    from dataclasses import replace

    told: list[Any] = []
    try_rates(RATES, replace(pair_of(plan_of(world)), version="0.0.1"), told.append)
    assert "the driver 0.0.1" in told[0]["failure"]
