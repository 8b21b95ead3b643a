"""A whole search on a toy pair, and its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.workspace import Workspace
from matplotlib.image import imread

import clbench
from clbench.core.errors import DataError, RunFolderError, SearchError, SettingsError, SuiteError
from clbench.runner.resources import Resources, connected
from clbench.search import (
    SearchFolder,
    SearchListener,
    SearchOutcome,
    SearchPlan,
    SearchSettings,
    TrialRecord,
    combine,
    make_search,
    search,
)
from clbench.search.trials import read_source
from clbench.suite.baselines import read_baseline
from clbench.suite.options import RunOptions

pytest.importorskip("autogluon")  # it has no version for Python 3.14
RESOURCES = Resources(workers=2, threads=1)


def plan_of(
    workspace: Workspace, scenario: str | None = "mood-thing", **changes: Any
) -> SearchPlan:
    options = {key: changes.pop(key) for key in ("out", "epochs") if key in changes}
    options.setdefault("out", workspace.folder / "search")
    settings = SearchSettings(**{"highest": 1e-2, "trials": 3, **changes})
    run_options = RunOptions(plugins=[workspace.plugin], device="cpu", **options)
    return make_search(workspace.suite, scenario, settings, run_options)


class Listener(SearchListener):
    def __init__(self) -> None:
        self.ended: list[int] = []

    def started(self, trials: int, pending: int, epochs: int) -> None:
        self.sizes = (trials, pending, epochs)

    def trial_ended(self, trial: TrialRecord) -> None:
        self.ended.append(trial.number)


def test_a_search_without_autogluon_is_refused(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clbench.search.plan.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"needs autogluon\.core: install it on Python 3\.11"):
        plan_of(world)


def test_a_scenario_with_a_column_besides_its_tasks_is_refused(world: Workspace) -> None:
    text = '[[scenario]]\nname = "text"\nshift = "pretraining"\ntasks = ["mood", "thing"]\n'
    world.suite.write_text(f"{world.suite.read_text()}\n{text}")
    with pytest.raises(
        SettingsError, match=r"scenario='text': pretraining is scored besides the t"
    ):
        search(plan_of(world, "text"))


@pytest.mark.slow
def test_search_resumes_and_its_baselines_run(world: Workspace) -> None:
    with connected(RESOURCES):  # both searches share their workers
        first = Listener()
        outcome = search(plan_of(world, epochs=1), resources=RESOURCES, listener=first)
        assert first.sizes == (3, 3, 2)
        assert sorted(first.ended) == [1, 2, 3]
        assert outcome.trials[0].rates == [0.002] * 5  # the flat rate first
        folder = SearchFolder(world.folder / "search")
        assert tuple(folder.read()) == outcome.trials
        content = json.loads(folder.file.read_text())
        assert content["split"] == "tuning (0.1 of the training rows, held out)"
        assert content["recipe"]["search"]["depth"] == 3

        second = Listener()
        plan = plan_of(world, epochs=1, trials=4)
        more = search(plan, resources=RESOURCES, listener=second)
        assert second.sizes == (4, 1, 2)
        assert more.trials[:3] == outcome.trials
        assert search(plan, resources=RESOURCES) == more  # nothing left to do
    check_files(world, more)
    with pytest.raises(RunFolderError, match=r"was run with .*epochs = 1, now 2"):
        search(plan_of(world, epochs=2))


def check_files(world: Workspace, outcome: SearchOutcome) -> None:
    folder = world.folder / "search"
    files = [str(folder / name) for name in ("bertcl.toml", "bertcl-mean.toml")]
    for path, rates in zip(files, (outcome.best.rates, outcome.mean), strict=True):
        baseline = read_baseline(path)
        multiples = baseline.settings["multiples"]
        assert [0.002 * multiple for multiple in multiples] == pytest.approx(list(rates))
        assert baseline.cost == outcome.cost
        assert set(baseline.sources) == set(baseline.settings)
        assert "on tuning (0.1 of the training rows, held out)" in baseline.sources["multiples"]
    run = world.run(methods=["vanilla", *files], device="cpu", epochs=1)
    cells = {cell.baseline: cell for cell in run.cells}
    assert cells["vanilla"].search == {}
    assert cells["bertcl"].search == outcome.cost.to_table()
    assert list(run.frame["search_seconds"])[1:] == [outcome.cost.seconds] * 2
    for name in ("rates.png", "trace.png"):
        picture = imread(folder / name)
        assert picture.shape[0] > 300
        assert picture[..., :3].std() > 0.01
    source = read_source(folder)
    assert source.name == "mood-thing"
    assert len(source.trials) == outcome.counts["complete"]


@pytest.mark.slow
def test_search_ends_when_its_first_trials_fail(world: Workspace, monkeypatch: Any) -> None:
    def fail(rates: list[float], setup: Any, report: Any) -> None:
        report({"reward": -2.0, "failure": "out of luck"})

    monkeypatch.setattr("clbench.search.ray_tune.run_trial", fail)
    with pytest.raises(SearchError, match=r"first \d+ trials failed.*out of luck"):
        search(plan_of(world, trials=30), resources=RESOURCES)
    trials = SearchFolder(world.folder / "search").read()
    assert {"failed"} <= {trial.status for trial in trials} <= {"failed", "running"}
    assert len(trials) < 30
    assert not (world.folder / "search" / "bertcl.toml").exists()
    with pytest.raises(DataError, match="none of its"):
        read_source(world.folder / "search")


@pytest.mark.slow
def test_unreachable_cluster_leaves_no_folder(world: Workspace) -> None:
    with pytest.raises(SettingsError, match="Ray cannot be reached"):
        search(plan_of(world), resources=Resources(address="127.0.0.1:1"))
    assert not (world.folder / "search").exists()


def test_finished_search_writes_its_outcome_again(toy: Workspace, tmp_path: Path) -> None:
    plan = plan_of(toy, out=tmp_path / "search", trials=2)
    folder = SearchFolder(plan.run.out)
    folder.begin(plan.recipe(), {})
    for number, score in ((1, 0.6), (2, 0.7), (3, 0.0)):
        epoch = {"stage": 1, "epoch": 4, "scores": [score] * 2, "reward": 2 * score, "seconds": 7}
        done = {"status": "complete", "p_o": score, "p_s": score} if score else {}
        rates = [number * 1e-3] * 5
        trial = {"number": number, "rates": rates, "epochs": [epoch], "seconds": 7, **done}
        folder.write(TrialRecord.model_validate(trial))
    outcome = search(plan, RESOURCES)
    trials = [trial for record in outcome.trials if (trial := record.trial())]
    assert outcome.best.number == 2
    assert outcome.mean == combine([trials]).rates
    assert outcome.counts == {"complete": 2, "running": 1}
    assert (outcome.cost.trials, outcome.cost.epochs, outcome.cost.seconds) == (3, 3, 21.0)
    assert outcome.cost.seeds == (plan.settings.seed,)
    assert not outcome.cost.on_reported_rows
    source = read_source(folder.path)
    assert (source.seeds, source.on_reported_rows) == (outcome.cost.seeds, False)
    baseline = read_baseline(str(folder.path / "bertcl.toml"))
    assert baseline.settings["multiples"] == pytest.approx([1.0] * 5)
    assert (folder.path / "trace.png").exists()


def test_search_that_halved_in_both_stages_is_not_resumed(toy: Workspace, tmp_path: Path) -> None:
    plan = plan_of(toy, out=tmp_path / "asha")
    recipe = plan.recipe()
    del recipe["search"]["halving"]["task"]  # as an earlier version wrote it
    SearchFolder(plan.run.out).begin(recipe, {})
    with pytest.raises(RunFolderError, match=r"was run with halving = .*, now .*'D_s'"):
        search(plan)
    assert plan_of(toy, scheduler="none").recipe()["search"]["halving"] is None  # as it was


def test_search_without_complete_trial_says_how_to_resume(toy: Workspace, tmp_path: Path) -> None:
    plan = plan_of(toy, out=tmp_path / "search", trials=1)
    folder = SearchFolder(plan.run.out)
    folder.begin(plan.recipe(), {})
    folder.write(TrialRecord(number=1, rates=[1e-3] * 5, status="stopped", reason="too weak"))
    with pytest.raises(SearchError, match=r"No trial is complete yet \(1 started\).*too weak"):
        search(plan)


def test_split_of_rewards_is_tuning_unless_paper_split(toy: Workspace) -> None:
    plan = plan_of(toy, paper_split=True)
    assert plan.run.protocol.score_on == "validation"
    assert "the paper's choice" in plan.recipe()["search"]["split"]
    assert plan_of(toy).run.protocol.score_on == "tuning"


@pytest.mark.parametrize(
    ("scenario", "changes", "text"),
    [
        ("three", {}, "has 3 tasks. and the reward p_o . p_s needs two"),
        (None, {}, "one pair of tasks, not 4 scenarios. Give one of mood-thing, three"),
        ("nothing", {}, "matches no scenario"),
        ("mood-thing", {"groups": 6}, "groups=6: must be from 3 to 5"),
    ],
)
def test_wrong_plan_is_an_error(
    toy: Workspace, scenario: str | None, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(clbench.ClbenchError, match=text):
        plan_of(toy, scenario, **changes)


def test_folder_of_a_run_is_refused(toy: Workspace, tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text("{}")
    with pytest.raises(RunFolderError, match="holds a run"):
        search(plan_of(toy, out=tmp_path))
    with pytest.raises(RunFolderError, match="cannot be written"):
        search(plan_of(toy, out=toy.suite))


def test_cost_in_baseline_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('method = "vanilla"\n[cost]\ntrials = 0\nepochs = 3\nseconds = 1\n')
    with pytest.raises(SuiteError, match=r"\[cost\] trials: must be greater than or equal to 1"):
        read_baseline(str(path))
