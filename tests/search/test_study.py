"""Tuning: equal budgets over declared sweeps, resumed from its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_engine import FakeExecutor

from clbench.core.errors import RunFolderError, SettingsError
from clbench.results.cell import CellResult
from clbench.runner.run_plan import run_plan
from clbench.runner.run_state import Listener
from clbench.search.plan import TuneSettings, make_tuning
from clbench.search.study import Study, read_studies, tuning_rounds, write_tuned
from clbench.suite.baselines import read_baseline
from clbench.suite.options import RunOptions

SUITE = """
name = "pair"
methods = ["vanilla", "ewc"]
seeds = [0, 1]

[[scenario]]
shift = "dataset"
tasks = ["synthetic/sentiment", "synthetic/acceptability"]
"""


POINTS = {
    "lora": """method = "lora"
[sweep]
r = [1, 2, 3, 4, 5, 6, 7, 8, 9]
targets = ["query-value", ["query"], ["key"], ["query", "key"]]
""",
    "l2p": """method = "l2p"
[settings]
select = 2
pool = 10
[sources]
select = "A test."
pool = "A test."
[sweep]
select = [2, 4, 8]
pool = [4, 10]
""",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "pair.toml"
    path.write_text(SUITE)
    return path


def tune(
    suite: Path, trials: int = 8, p_o: Callable[[Any], float] = lambda cell: 0.5, **changes: Any
) -> tuple[list[Study], FakeExecutor, Any]:
    """Tune on cells whose p_o is given and whose p_s is 0.7; return the studies."""
    options = RunOptions(out=suite.parent / "tuned")
    plan = make_tuning(suite, TuneSettings(trials=trials, **changes), options)
    fake = FakeExecutor()
    fake.p_o = p_o
    for state in tuning_rounds(plan):
        if state.pending:
            run_plan(state, Listener(), fake)
    return read_studies(plan), fake, plan


def peak(cell: Any) -> float:
    """Highest at an importance of 1e5 and half of the rate."""
    settings = cell.baseline.settings
    distance = abs(math.log10(settings.get("importance", 1000.0)) - 5)
    return 0.8 - 0.1 * distance - 0.1 * abs(settings.get("lr_multiple", 1.0) - 0.5)


@pytest.mark.slow
def test_methods_get_the_same_trials_and_the_best_is_written(suite: Path) -> None:
    studies, fake, plan = tune(suite, 12, peak)
    vanilla, ewc = studies
    assert len(ewc.trials) == 12
    assert len(vanilla.trials) == 5  # its sweep has no more points
    assert len(fake.ran) == 2 * (12 + 5)
    assert {key.rpartition("seed")[2] for key in fake.ran} == {"1000", "1001"}
    assert ewc.trials[0].settings == {}
    best = max(ewc.trials, key=lambda trial: trial.score)
    assert best.score > ewc.trials[0].score
    assert best.score == pytest.approx((best.p_o + best.p_s) / 2)
    paths = write_tuned(plan, studies)
    assert [path.name for path in paths] == ["vanilla.toml", "ewc.toml"]
    assert paths[1].read_text().startswith("# Written by clbench tune")
    tuned = read_baseline(str(paths[1]))
    assert tuned.name == "ewc"
    assert tuned.settings["importance"] == best.settings["importance"]
    assert tuned.settings["half"] is True
    assert tuned.sources["importance"].startswith("Tuned: the best of 12 trials of clbench tune")
    assert tuned.sweep == read_baseline("ewc").sweep
    assert tuned.cost is not None
    assert (tuned.cost.trials, tuned.cost.epochs) == (12, 12 * 2 * 2 * 3)
    assert tuned.cost.seeds == (1000, 1001)
    assert read_baseline(str(paths[0])).settings == {"lr_multiple": 0.5}


def test_trials_are_scored_on_tuning_rows(suite: Path) -> None:
    suite.write_text(suite.read_text() + '\n[protocol]\nscore_on = "validation"\n')
    plan = make_tuning(suite, TuneSettings(trials=2), RunOptions(out=suite.parent / "tuned"))
    state = next(tuning_rounds(plan))
    assert {cell.protocol.score_on for cell in state.pending} == {"tuning"}
    assert {cell.recipe["protocol"]["score_on"] for cell in state.pending} == {"tuning"}


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["bayes", "random"])
def test_later_proposals_follow_the_scores_unless_random(suite: Path, searcher: str) -> None:
    def proposals(p_o: Callable[[Any], float], folder: str) -> list[Any]:
        options = RunOptions(out=suite.parent / folder, methods=["ewc"])
        plan = make_tuning(suite, TuneSettings(trials=16, searcher=searcher), options)
        fake = FakeExecutor()
        fake.p_o = p_o
        for state in tuning_rounds(plan):
            run_plan(state, Listener(), fake)
        return read_studies(plan)[0].proposals

    up, down = proposals(peak, "up"), proposals(lambda cell: 1.0 - peak(cell), "down")
    assert up[:4] == down[:4]  # the first round knows no scores
    assert (up == down) == (searcher == "random")


def test_a_sweep_with_fewer_points_than_trials_is_tried_whole_at_once(suite: Path) -> None:
    options = RunOptions(out=suite.parent / "tuned", methods=["vanilla"])
    plan = make_tuning(suite, TuneSettings(trials=10_000), options)
    study = Study(plan, plan.first.baselines[0])
    study.propose(2500)
    assert len(study.proposals) == 5
    assert study.is_exhausted


@pytest.mark.parametrize("name", ["lora", "l2p"])
def test_every_point_of_a_finite_sweep_is_found(suite: Path, name: str) -> None:
    path = suite.with_name(f"{name}.toml")
    path.write_text(POINTS[name])
    options = RunOptions(out=suite.parent / "tuned", methods=[str(path)])
    settings = TuneSettings(trials=40, keep_rate=True)
    (study,) = read_studies(make_tuning(suite, settings, options))
    study.propose(20)
    study.propose(20)  # of which the searcher would find a part
    assert len(study.proposals) == {"lora": 36, "l2p": 5}[name]  # of l2p's 6, one does not fit
    assert study.is_exhausted


def test_listed_values_can_be_lists(suite: Path) -> None:
    path = suite.with_name("lora.toml")
    path.write_text(POINTS["lora"])
    options = RunOptions(out=suite.parent / "tuned", methods=[str(path)])
    plan = make_tuning(suite, TuneSettings(trials=8), options)
    for state in tuning_rounds(plan):  # the searcher is told the scores of lists
        run_plan(state, Listener(), FakeExecutor())
    (study,) = read_studies(plan)
    assert len(study.trials) == 8
    assert any(isinstance(point.get("targets"), list) for point in study.proposals)


def test_values_that_do_not_fit_are_named(suite: Path) -> None:
    path = suite.with_name("fast.toml")
    path.write_text(
        'method = "frozen"\n[settings]\nlr = 1e-3\n[sources]\nlr = "A test."\n'
        "[sweep]\nlr_multiple = [1.0, 2e5]\n"
    )
    options = RunOptions(out=suite.parent / "tuned", methods=[str(path)])
    (study,) = read_studies(make_tuning(suite, TuneSettings(trials=4), options))
    (line,) = study.unfit()
    assert line.startswith("Points with lr_multiple = 200000.0 are left out: fast, with this prot")
    assert line.endswith("the rate lr·lr_multiple is 200: must be at most 100.")


@pytest.mark.slow
def test_tuning_goes_on_where_it_stopped(suite: Path) -> None:
    first, _, plan = tune(suite, 4)
    more, fake, _ = tune(suite, 8)
    assert [trial.settings for trial in more[1].trials[:4]] == [t.settings for t in first[1].trials]
    assert not {key for key in fake.ran if "ewc-t2" in key}
    assert len(more[1].trials) == 8
    fewer, fake, _ = tune(suite, 4)
    assert (len(fewer[1].trials), fake.ran) == (4, [])
    assert fewer[1].cost() == more[1].cost()  # all that was spent
    file = json.loads((plan.out / "tune.json").read_text())
    assert len(file["methods"]["ewc"]["proposals"]) == 8


def test_bad_proposals_are_blamed_on_their_file(suite: Path) -> None:
    _, _, plan = tune(suite, 4)
    file = json.loads(plan.file.read_text())
    for proposal, problem in (
        ({"importance": "a"}, "importance: must be a number, got 'a'"),
        ({"importance": -1.0}, "importance: must be greater than"),
        ({"no_such": 1.0}, "no_such: unknown key"),
    ):
        file["methods"]["ewc"]["proposals"][1] = proposal
        plan.file.write_text(json.dumps(file))
        with pytest.raises(RunFolderError) as caught:
            read_studies(plan)
        text = str(caught.value)
        assert text.startswith(f"{plan.file}: a proposal for ewc is wrong: ")
        assert problem in text
        assert text.endswith("Restore the file, or choose another out.")
        assert "ewc.toml" not in text


@pytest.mark.slow
def test_the_cost_holds_trials_with_other_seeds(suite: Path) -> None:
    before, _, _ = tune(suite, 4)
    after, fake, _ = tune(suite, 4, seeds=(1000, 2000))
    assert {key.rpartition("seed")[2] for key in fake.ran} == {"2000"}
    assert after[1].cost().epochs == before[1].cost().epochs * 1.5


@pytest.mark.slow
def test_cells_of_unfinished_trials_are_told_from_those_of_other_settings(suite: Path) -> None:
    tune(suite, 4)
    plan = make_tuning(
        suite,
        TuneSettings(trials=2, seeds=(1000, 2000)),
        RunOptions(out=suite.parent / "tuned"),
    )
    ewc = read_studies(plan)[1]
    assert ewc.trials == []
    found = {(cell.baseline, cell.seed) for cell in ewc.cells}
    assert found == {("ewc", 1000), ("ewc-t2", 1000)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"searcher": "random"}, "searcher = 'bayes', now 'random'"),
        ({"keep_rate": True}, r"lr_multiple = \[0.1, 0.2, 0.5, 1.0, 2.0\], now not set"),
    ],
)
def test_trials_of_other_sweeps_are_not_mixed(suite: Path, changes: Any, problem: str) -> None:
    tune(suite, 4)
    with pytest.raises(RunFolderError, match=f"vanilla was run with {problem}"):
        tune(suite, 4, **changes)


def test_names_of_trials_must_be_free(suite: Path) -> None:
    text = suite.read_text().replace('"ewc"]', '"ewc", "ewc-t3"]')
    suite.write_text(text + '\n[baseline.ewc-t3]\nof = "ewc"\nsettings = { importance = 5.0 }\n')
    with pytest.raises(SettingsError, match="'ewc-t3' is also the name of a trial of ewc"):
        make_tuning(suite, TuneSettings(trials=4))
    make_tuning(suite, TuneSettings(trials=2))


def test_files_of_others_are_not_overwritten(suite: Path) -> None:
    (suite.parent / "ewc.toml").write_text(read_baseline("ewc").to_toml())
    with pytest.raises(RunFolderError, match=r"ewc\.toml would be overwritten"):
        make_tuning(suite, options=RunOptions(out=suite.parent))


@pytest.mark.slow
def test_tuned_baselines_do_not_share_a_folder_with_their_trials(suite: Path) -> None:
    studies, _, plan = tune(suite, 4, peak)
    paths = write_tuned(plan, studies)
    options = RunOptions(out=plan.out, methods=[str(paths[1])])
    with pytest.raises(RunFolderError, match=r"now [\d.]+.*Choose another out\.$"):
        make_tuning(suite, TuneSettings(trials=4), options)


def test_a_method_out_of_time_gets_no_further_round(suite: Path) -> None:
    studies, _, _ = tune(suite, 40, minutes=1.0)  # 24 s a trial
    assert len(studies[1].trials) == 10


def test_failed_trials_count_and_never_win(suite: Path) -> None:
    plan = make_tuning(suite, TuneSettings(trials=4), RunOptions(out=suite.parent / "tuned"))
    fake = FakeExecutor()
    for state in tuning_rounds(plan):
        fake.fails = {cell.key for cell in state.pending if cell.baseline.name != "ewc-t2"}
        run_plan(state, Listener(), fake)
    assert len(fake.ran) == len({*fake.ran}) == 2 * (4 + 4)
    vanilla, ewc = read_studies(plan)
    assert ewc.best is not None
    assert ewc.best.number == 2
    assert vanilla.best is None
    assert [path.name for path in write_tuned(plan, [vanilla, ewc])] == ["ewc.toml"]


def test_reported_seeds_are_refused(suite: Path) -> None:
    with pytest.raises(SettingsError, match=r"the suite reports 1\. Choose other seeds"):
        make_tuning(suite, TuneSettings(seeds=(1, 7)))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"trials": 0}, "trials: must be greater than or equal to 1, got 0"),
        ({"minutes": 0.0}, "minutes: must be greater than 0, got 0"),
        ({"searcher": "grid"}, "searcher: must be 'bayes' or 'random', got 'grid'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        TuneSettings(**settings)


def test_the_question_of_the_suite_is_not_asked(suite: Path) -> None:
    text = suite.read_text().replace(
        "[[scenario]]", '[question]\nscores = ["area"]\n\n[[scenario]]'
    )
    suite.write_text(text)  # a tuning has no points of curves
    assert make_tuning(suite, TuneSettings(trials=2), RunOptions(out=suite.parent / "tuned"))


@pytest.mark.slow
def test_points_that_do_not_fit_the_protocol_are_left_out(suite: Path) -> None:
    suite.write_text(suite.read_text() + "\n[protocol]\nlr = 1e-4\n")
    options = RunOptions(out=suite.parent / "tuned", methods=["recadam-paper"])
    fake = FakeExecutor()
    plan = make_tuning(suite, TuneSettings(trials=40), options)
    for state in tuning_rounds(plan):
        run_plan(state, Listener(), fake)
    (study,) = read_studies(make_tuning(suite, TuneSettings(trials=40), options))
    assert len(study.trials) == 40
    assert not any(trial.settings.get("lr_multiple") == 2.0 for trial in study.trials)


def test_failed_trials_cost_their_time(suite: Path) -> None:
    plan = make_tuning(suite, TuneSettings(trials=1), RunOptions(out=suite.parent / "tuned"))
    fake = FakeExecutor()
    for state in tuning_rounds(plan):
        fake.fails = {cell.key for cell in state.pending}
        run_plan(state, Listener(), fake)
    study = read_studies(plan)[0]
    lost = study.all_cells[0].model_copy(
        update={"started": "2026-01-01T10:00:00+00:00", "finished": "2026-01-01T10:01:30+00:00"}
    )
    study.all_cells = [lost]
    assert study.cost().seconds == 90.0


def test_stages_that_trials_share_cost_once(suite: Path) -> None:
    plan = make_tuning(suite, TuneSettings(trials=1), RunOptions(out=suite.parent / "tuned"))
    for state in tuning_rounds(plan):
        run_plan(state, Listener(), FakeExecutor())
    study = read_studies(plan)[0]
    cell = study.all_cells[0]

    def with_stages(*stages: tuple[bool, float]) -> CellResult:
        """A cell of two stages, each cached or not and with these seconds; scoring takes 1 s."""
        changed = [
            stage.model_copy(
                update={"cached": cached, "train_seconds": seconds, "eval_seconds": 1.0}
            )
            for stage, (cached, seconds) in zip(cell.stages, stages, strict=True)
        ]
        return cell.model_copy(update={"stages": changed})

    study.all_cells = [
        with_stages((True, 10.0), (True, 30.0)),  # trained by another method, and by the next cell
        with_stages((True, 10.0), (False, 30.0)),
        with_stages((False, 12.0), (True, 30.0)),
    ]
    assert study.cost().seconds == 10.0 + 12.0 + 30.0 + 6.0
    study.cells, study.plan = (
        study.all_cells,
        replace(plan, settings=TuneSettings(trials=2, minutes=1.0)),
    )
    assert study.is_open  # 58 of 60 s


def test_a_tuning_chooses_its_own_points(suite: Path) -> None:
    with pytest.raises(SettingsError, match=r"^sweep: a tuning chooses its own points"):
        make_tuning(suite, options=RunOptions(sweep=3))
