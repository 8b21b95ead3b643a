"""A whole search on a small world, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from workspace import Workspace

import clbench
from clbench.errors import DataError, RunFolderError, SearchError, SettingsError, SuiteError
from clbench.evaluation.resources import Resources, connected
from clbench.search import Found, SearchFolder, SearchSettings, combine, make_search, search
from clbench.search.source import read_source
from clbench.suite.baselines import read_baseline
from clbench.suite.options import RunOptions

PLACE = Resources(workers=2, threads=1)


def plan_of(world: Workspace, scenario: str | None = "mood-thing", **changes: Any) -> Any:
    given = {key: changes.pop(key) for key in ("out", "epochs", "model", "limit") if key in changes}
    given.setdefault("out", world.folder / "found")
    settings = SearchSettings(**{"highest": 1e-2, "trials": 4, **changes})
    options = RunOptions(plugins=[world.plugin], device="cpu", **given)
    return make_search(world.suite, scenario, settings, options)


class RecordingListener:
    def __init__(self) -> None:
        self.ended: list[int] = []

    def started(self, trials: int, pending: int, epochs: int) -> None:
        self.first = (trials, pending, epochs)

    def trial_ended(self, trial: Any) -> None:
        self.ended.append(trial.number)

    def note(self, text: str) -> None:
        pass


def test_a_search_goes_on_and_its_baselines_run(world: Workspace) -> None:
    with connected(PLACE):  # the workers of one search serve the next
        more = _searched_in_parts(world)
    best = max((t for t in more.trials if t.status == "complete"), key=lambda t: t.p_o + t.p_s)
    assert more.best.p_o + more.best.p_s == best.p_o + best.p_s
    complete = [made for trial in more.trials if (made := trial.trial())]
    assert more.mean == combine([complete]).rates
    assert more.cost.trials == 6
    assert more.cost.epochs == sum(len(trial.epochs) for trial in more.trials)
    assert more.cost.seconds == pytest.approx(sum(trial.seconds for trial in more.trials), abs=1e-2)

    _check_files(world, more)
    with pytest.raises(RunFolderError, match=r"was run with .*epochs = 2, now 3"):
        search(plan_of(world, epochs=3))
    with pytest.raises(RunFolderError, match="searcher = 'bayes', now 'random'"):
        search(plan_of(world, epochs=2, searcher="random"))


def _searched_in_parts(world: Workspace) -> Found:
    told = RecordingListener()
    found = search(plan_of(world, epochs=2), place=PLACE, listener=told)
    assert told.first == (4, 4, 4)
    assert sorted(told.ended) == [1, 2, 3, 4]
    assert found.trials[0].rates == [0.002] * 5  # the flat rate first
    folder = SearchFolder(world.folder / "found")
    assert tuple(folder.read()) == found.trials
    recorded = json.loads(folder.file.read_text())
    assert recorded["split"] == "tuning (0.1 of the training rows, held out)"
    assert recorded["recipe"]["search"]["depth"] == 3

    # It goes on where it was, and does nothing more when it is done.
    more = search(
        plan_of(world, epochs=2, trials=6), place=PLACE, listener=(told := RecordingListener())
    )
    assert told.first == (6, 2, 4)
    assert more.trials[:4] == found.trials
    assert [trial.number for trial in more.trials] == [1, 2, 3, 4, 5, 6]
    again = search(plan_of(world, epochs=2, trials=6), place=PLACE)
    assert again == more
    return more


def _check_files(world: Workspace, found: Found) -> None:
    folder = world.folder / "found"
    files = [str(folder / name) for name in ("bertcl.toml", "bertcl-mean.toml")]
    for path, rates in zip(files, (found.best.rates, found.mean), strict=True):
        baseline = read_baseline(path)
        multiples = baseline.settings["multiples"]
        assert [0.002 * multiple for multiple in multiples] == pytest.approx(list(rates))
        assert baseline.cost == found.cost
        assert set(baseline.sources) == set(baseline.settings)
        assert "on tuning (0.1 of the training rows, held out)" in baseline.sources["multiples"]
    run = world.run(methods=["vanilla", *files], device="cpu", epochs=2)
    cells = {cell.baseline: cell for cell in run.cells}
    assert set(cells) == {"vanilla", "bertcl", "bertcl-mean"}
    assert cells["vanilla"].search == {}
    assert cells["bertcl"].search == found.cost.model_dump()
    assert list(run.frame["search_seconds"])[1:] == [found.cost.seconds] * 2
    for name in ("rates.png", "trace.png"):
        picture = imread(folder / name)
        assert picture.shape[0] > 300
        assert picture[..., :3].std() > 0.01
    source = read_source(folder)
    assert source.name == "mood-thing"
    assert source.cost == found.cost
    assert len(source.trials) == found.counts["complete"]


def test_the_papers_choice_is_named(world: Workspace) -> None:
    plan = plan_of(world, paper_split=True)
    assert plan.run.protocol.score_on == "validation"
    assert "the paper's choice" in plan.recipe()["search"]["split"]
    assert plan_of(world).run.protocol.score_on == "tuning"


def test_a_shift_that_breaks_and_trials_that_all_fail(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import clbench.search.objective as objective

    def broken(rates: list[float], pair: Any, report: Any) -> None:
        report({"reward": -2.0, "epoch": 1, "failure": "out of luck", "seconds": 0.1})

    monkeypatch.setattr(objective, "try_rates", broken)
    with pytest.raises(SearchError, match=r"first \d+ trials failed.*out of luck"):
        search(plan_of(world, trials=30), place=PLACE)
    trials = SearchFolder(world.folder / "found").read()
    assert {"failed"} <= {trial.status for trial in trials} <= {"failed", "running"}
    assert len(trials) < 30
    assert not (world.folder / "found" / "bertcl.toml").exists()
    with pytest.raises(DataError, match="none of its"):
        read_source(world.folder / "found")


@pytest.mark.parametrize(
    ("scenario", "changes", "text"),
    [
        ("three", {}, "has 3 tasks. The reward p_o . p_s is one of two"),
        ("mood*", {}, "one pair of tasks, not for 2"),
        (None, {}, "Give one of mood-thing, three, mood-length, opposite"),
        ("nothing", {}, "matches no scenario"),
        ("mood-thing", {"groups": 6}, "--groups 6: must be from 3 to 5"),
        ("mood-thing", {"highest": 1e-3}, "lies outside"),
        ("mood-thing", {"groups": 0}, "--groups 0: must be from 3 to 5"),
        ("mood-thing", {"trials": 0}, "--trials 0"),
        ("mood-thing", {"grace": 0}, "--grace 0"),
        ("mood-thing", {"time_limit": 0.0}, "--time-limit 0"),
        ("mood-thing", {"searcher": "grid"}, "--searcher 'grid': must be bayes or random"),
    ],
)
def test_wrong_wishes_are_told_before_anything_is_written(
    world: Workspace, scenario: str | None, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(clbench.ClbenchError, match=text):
        plan_of(world, scenario, **changes)
    assert not (world.folder / "found").exists()


def test_folders_of_something_else(world: Workspace) -> None:
    world.run("run", methods=["vanilla"], epochs=1)
    with pytest.raises(RunFolderError, match="holds a run"):
        search(plan_of(world, out=world.folder / "run"))
    with pytest.raises(RunFolderError, match="is a file"):
        search(plan_of(world, out=world.suite))
    (world.folder / "odd").mkdir()
    world.write("odd/search.json", "{}")
    with pytest.raises(RunFolderError, match="not written by clbench"):
        search(plan_of(world, out=world.folder / "odd"))
    with pytest.raises(SettingsError, match="Ray cannot be reached"):
        search(plan_of(world), place=Resources(address="127.0.0.1:1"))
    assert not (world.folder / "found").exists()
    with pytest.raises(DataError, match="holds no search"):
        read_source(world.folder / "run")


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("0003", {"rates": "high"}, "0003.json is no trial: rates: must be a list"),
        ("0003", {"rates": [1e-3, -1.0, 1e-3]}, r"0003.json is no trial: rates.1: must be greater"),
        ("0003", {"rates": [1e-3]}, "0003.json is no trial: rates"),
        ("0003", {"rates": [1e-3] * 5}, "0003.json is no trial of this search: it has 5 rates"),
        ("0003", {"status": "complete"}, "a complete trial has epochs, p_o and p_s"),
        ("0004", {}, "0004.json holds trial 3"),
    ],
)
def test_a_damaged_trial_is_named(
    world: Workspace, name: str, changes: dict[str, Any], text: str
) -> None:
    folder = SearchFolder(world.folder / "found")
    folder.begin({"search": {"flat": 1e-3, "depth": 2, "division": "code"}}, {})
    (folder.path / "trials").mkdir()
    good = {"number": 1, "rates": [1e-3] * 3}
    world.write("found/trials/0001.json", json.dumps(good))
    world.write(f"found/trials/{name}.json", json.dumps({**good, "number": 3, **changes}))
    with pytest.raises(DataError, match=text):
        folder.read()


def test_trials_without_what_they_are_of_are_refused(world: Workspace) -> None:
    folder = SearchFolder(world.folder / "found")
    folder.begin({}, {})
    with pytest.raises(RunFolderError, match="is damaged: its recipe is missing"):
        folder.settings()
    (folder.path / "trials").mkdir()
    world.write("found/trials/0001.json", "{}")
    folder.file.unlink()
    with pytest.raises(RunFolderError, match=r"holds trials, but search\.json is missing"):
        search(plan_of(world))


def test_a_time_limit_that_comes_too_soon_says_so(world: Workspace) -> None:
    with pytest.raises(SearchError, match="No trial has come to its end yet"):
        search(plan_of(world, time_limit=0.01), place=PLACE)
    (trial, *_) = SearchFolder(world.folder / "found").read()
    assert trial.status == "running"
    assert trial.seconds > 0.0  # charged all the same


def test_a_cost_is_checked_when_a_baseline_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('method = "vanilla"\n[cost]\ntrials = 0\nepochs = 3\nseconds = 1\n')
    with pytest.raises(SuiteError, match=r"\[cost\] trials: must be at least 1"):
        read_baseline(str(path))
