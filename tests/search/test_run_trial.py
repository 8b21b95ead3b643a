"""A trial trains exactly as a run with its rates does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.workspace import Workspace, rows, write_rows

from clbench.runner.prepare import ScenarioPreparer
from clbench.runner.ray_worker import WorkerSetup
from clbench.runner.start import start_model
from clbench.search import SearchPlan, SearchSettings, make_search
from clbench.search.ray_tune import TrialSetup, run_trial
from clbench.suite.options import RunOptions
from clbench.tasks.metrics import METRICS

pytest.importorskip("autogluon")  # it has no version for Python 3.14
RATES = [1e-3, 2e-3, 5e-4, 3e-3]


def plan_of(workspace: Workspace, epochs: int = 1, **settings: Any) -> SearchPlan:
    return make_search(
        workspace.suite,
        "mood-thing",
        SearchSettings(**settings, highest=1e-2),
        RunOptions(plugins=[workspace.plugin], device="cpu", epochs=epochs),
    )


def setup_of(plan: SearchPlan) -> TrialSetup:
    run = plan.run
    preparer = ScenarioPreparer(
        run.protocol, data=None, base=run.suite.base, own=run.suite.file.task,
        device=torch.device("cpu"), output=None,
    )  # fmt: skip
    scenario = preparer.prepare(run.scenarios[0])
    model = start_model(run.cells[0], scenario)
    run.out.mkdir(parents=True, exist_ok=True)
    (run.out / ".lock").touch()
    return TrialSetup(run.cells[0], scenario, model, "code", WorkerSetup.of(run, 1))


def reports_of(setup: TrialSetup, rates: list[float] = RATES) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []

    def report(metrics: Mapping[str, Any]) -> None:
        reports.append(dict(metrics))

    run_trial(rates, setup, report)
    return reports


def test_every_epoch_is_reported_with_the_scores_of_a_run(world: Workspace) -> None:
    plan = plan_of(world, epochs=2)
    reports = reports_of(setup_of(plan))
    stages = [(report["stage"], report["stage_epoch"]) for report in reports]
    assert stages == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [len(report["scores"]) for report in reports] == [1, 1, 2, 2]
    assert all(report["reward"] == pytest.approx(sum(report["scores"])) for report in reports)
    # A suite that is scored on the held-out rows gives the same scores.
    text = world.suite.read_text().replace("curve_points = 3", 'score_on = "tuning"')
    world.suite.write_text(text)
    world.write("mine.toml", f'method = "layerwise"\n[settings]\nrates = {RATES}\n')
    mine = str(world.folder / "mine.toml")
    run = world.run(methods=[mine], device="cpu", threads=1, epochs=2, seeds=plan.settings.seed)
    scores = run.cells[0].scores
    assert reports[1]["scores"] == [scores["p_o_before"]]
    assert reports[-1]["scores"] == [scores["p_o"], scores["p_s"]]


@pytest.mark.slow
def test_reward_ignores_validation_rows_except_with_paper_split(world: Workspace) -> None:
    def scores(**settings: Any) -> list[Any]:
        return [r["scores"] for r in reports_of(setup_of(plan_of(world, **settings)))]

    before, paper = scores(), scores(paper_split=True)
    for seed, name, word, labels in (
        (7, "thing", "film", ("story", "film")),
        (8, "mood", "good", ("down", "up")),
    ):
        dev = rows(seed, 80, lambda words, w=word, of=labels: of[0] if w in words else of[1])  # type: ignore[misc]
        write_rows(world.folder / f"{name}-dev.csv", dev)
    assert scores() == before
    assert scores(paper_split=True) != paper


def test_held_out_rows_are_not_trained_on(toy: Workspace) -> None:
    scenario = setup_of(plan_of(toy)).scenario
    tasks = zip(scenario.scenario.tasks, scenario.train, scenario.scored, strict=True)
    for task, train, scored in tasks:
        assert len(train.rows) + len(scored.rows) == 160  # all rows of the training file
        assert task.tuning is not None
        assert not {*task.train.index} & {*task.tuning.index}
        assert train.rows.labels.tolist() == task.train.labels.tolist()
        assert scored.rows.labels.tolist() == task.tuning.labels.tolist()


def test_error_is_reported_as_failure(toy: Workspace) -> None:
    setup = setup_of(plan_of(toy))
    (report,) = reports_of(setup, [1e-3] * 2)  # fewer than three groups
    assert report["reward"] == -2.0
    assert "rates" in report["failure"]
    (report,) = reports_of(replace(setup, worker=replace(setup.worker, version="0.0.1")))
    assert "the driver 0.0.1" in report["failure"]


def test_a_worker_loads_the_plugins_of_the_search(toy: Workspace) -> None:
    text = "import clbench\n@clbench.metric('share')\ndef share(outputs, labels):\n    return 0.5\n"
    plugin = toy.write("share.py", text)
    suite = toy.suite.read_text() + '\n[protocol.task_metric]\nmood = "share"\n'
    other = toy.write("share.toml", suite)
    plan = make_search(
        other,
        "mood-thing",
        SearchSettings(highest=1e-2),
        RunOptions(plugins=[toy.plugin, plugin], device="cpu", epochs=1),
    )
    setup = setup_of(plan)
    METRICS._entries.pop("share")  # as in a worker that has just started
    del sys.modules[plan.run.plugins[1].module]
    first, *_ = reports_of(setup)
    assert first["scores"] == [0.5]
