"""The search through Ray and autogluon, over a reward that costs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from clbench.evaluation.resources import CellResources, Resources, connected
from clbench.search.baseline import FoundOn
from clbench.search.halving import Halving
from clbench.search.record import EpochRecord, TrialRecord
from clbench.search.recorder import Recorder
from clbench.search.space import Space
from clbench.search.tuning import Tuning, tune

SPACE = Space(FoundOn(2e-5, 2), 4)
EPOCHS = 6
GOOD = 3e-5
Report = Callable[[Mapping[str, Any]], None]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with connected(Resources(workers=2, threads=1)) as module:
        yield module


def objective_by_distance() -> Callable[[list[float], Any, Report], None]:
    """Reward by how near all rates are to `GOOD`; made here so that workers need no import."""
    good, epochs = GOOD, EPOCHS

    def objective(rates: list[float], pair: Any, report: Report) -> None:
        if pair.get("refuses") and max(rates) > pair["refuses"]:
            report({"reward": -2.0, "epoch": 1, "failure": "too high", "seconds": 0.1})
            return
        far = sum(abs(math.log10(rate / good)) for rate in rates) / len(rates)
        for epoch in range(1, epochs + 1):
            stage = 0 if epoch <= epochs // 2 else 1
            score = max(0.0, 0.4 - 0.2 * far + 0.01 * epoch)
            scores = [score, score][: stage + 1]
            report(
                {
                    "reward": sum(scores),
                    "epoch": epoch,
                    "stage": stage,
                    "stage_epoch": epoch - stage * epochs // 2,
                    "scores": scores,
                    "seconds": 0.1 * epoch,
                }
            )

    return objective


def searched(
    trials: int,
    past: list[TrialRecord] | None = None,
    pair: dict[str, Any] | None = None,
    *,
    workers: int = 1,
    **changes: Any,
) -> list[TrialRecord]:
    """The trials of a search as they are at its end, by number."""
    kept: dict[int, TrialRecord] = {}
    settings: dict[str, Any] = {"searcher": "bayes", "halving": Halving(), "seed": 0}
    settings |= {"time_limit": None, **changes}
    recorder = Recorder(
        past or [], EPOCHS, settings["halving"], lambda trial: kept.update({trial.number: trial})
    )
    tuning = Tuning(SPACE, EPOCHS, trials, **settings)
    tune(
        objective_by_distance(),
        pair or {},
        tuning,
        past or [],
        recorder,
        CellResources(1, 0.0),
        workers,
    )
    return [kept[number] for number in sorted(kept)]


def test_hopeless_trials_are_stopped_and_the_best_is_found(ray: Any, capfd: Any) -> None:
    trials = searched(30)
    assert [trial.number for trial in trials] == list(range(1, 31))
    assert trials[0].rates == SPACE.flat
    assert trials[0].status == "complete"
    stopped = [trial for trial in trials if trial.status == "stopped"]
    assert len(stopped) > 10
    assert {len(trial.epochs) for trial in stopped} <= {1, 2, 4}
    assert all("the limit set by" in str(trial.reason) for trial in stopped)
    epochs = sum(len(trial.epochs) for trial in trials)
    assert epochs < 0.6 * 30 * EPOCHS
    for trial in trials:
        assert all(1e-7 <= rate <= 1e-3 for rate in trial.rates)
    assert len({tuple(trial.rates) for trial in trials}) == 30
    # What Ray and autogluon have to say is in the records.
    assert capfd.readouterr() == ("", "")


def test_the_same_seed_proposes_the_same(ray: Any) -> None:
    first, again = searched(6), searched(6)
    assert [trial.rates for trial in first] == [trial.rates for trial in again]
    assert [trial.status for trial in first] == [trial.status for trial in again]
    assert searched(6, seed=1)[1].rates != first[1].rates


def test_without_a_scheduler_every_trial_comes_to_its_end(ray: Any) -> None:
    trials = searched(6, halving=None, searcher="random", workers=2)
    assert [trial.status for trial in trials] == ["complete"] * 6
    assert trials[0].rates == SPACE.flat
    assert len({tuple(trial.rates) for trial in trials}) == 6


def test_failures_are_learned_from(ray: Any) -> None:
    trials = searched(12, pair={"refuses": 5e-4})
    failed = [trial for trial in trials if trial.status == "failed"]
    assert failed
    assert {trial.reason for trial in failed} == {"too high"}
    assert all(trial.rewards == [-2.0] for trial in failed)


def test_a_search_in_which_everything_fails_ends(ray: Any) -> None:
    trials = searched(20, pair={"refuses": 1e-9})
    assert 3 <= len(trials) < 8
    assert {trial.status for trial in trials} == {"failed"}


@pytest.mark.parametrize("searcher", ["bayes", "random"])
def test_going_on_tries_again_what_was_cut_off_and_nothing_twice(ray: Any, searcher: str) -> None:
    before = searched(4, searcher=searcher)
    cut = TrialRecord(number=5, rates=[1e-6, 1e-5, 1e-4, 1e-3])
    after = searched(3, [*before, cut], searcher=searcher)
    assert [trial.number for trial in after] == [6, 7, 8]
    assert after[0].rates == pytest.approx(cut.rates)
    tried = {tuple(trial.rates) for trial in before}
    assert all(tuple(trial.rates) not in tried for trial in after)


def test_searcher_and_scheduler_learn_of_the_past() -> None:
    from clbench.search.ray_tune import _Lessons, _scheduler, _searcher

    def trial(number: int, status: Any, *rewards: float) -> TrialRecord:
        epochs = [
            EpochRecord(stage=0, epoch=i, scores=[r], reward=r, seconds=1.0)
            for i, r in enumerate(rewards, 1)
        ]
        scores = {"p_o": 0.6, "p_s": 0.6} if status == "complete" else {}
        rates = [number * 1e-5] * 4
        return TrialRecord(number=number, rates=rates, status=status, epochs=epochs, **scores)

    past = [
        trial(1, "complete", 0.5, 0.6, 0.7, 0.8, 0.9, 1.2),
        trial(2, "stopped", 0.3),
        trial(3, "failed", 0.4),
        trial(4, "running", 0.2),
    ]
    tuning = Tuning(SPACE, EPOCHS, 5, "bayes", Halving(), 0, None)
    known = past[:3]
    searcher, scheduler = _searcher(tuning, past, known), _scheduler(tuning)
    from autogluon.common import space as spaces
    from autogluon.core.hpo.ray_hpo import _convert_search_space

    converted, _ = _convert_search_space(
        {key: spaces.Real(1e-7, 1e-3, log=True) for key in SPACE.keys}
    )
    searcher.set_search_properties("reward", "max", converted)
    scheduler.set_search_properties("reward", "max")
    _Lessons(searcher, scheduler, known).setup()
    told = {
        round(doc["misc"]["vals"]["rate0"][0], 9): doc["result"].get("loss")
        for doc in searcher._hpopt_trials.trials
        if doc["result"].get("status") == "ok"
    }
    assert told == {1e-5: -1.2, 2e-5: -0.3, 3e-5: 2.0}
    assert list(SPACE.rates(searcher.suggest("new"))) == pytest.approx([4e-5] * 4)
    rungs = {milestone: sorted(seen.values()) for milestone, seen in scheduler._brackets[0]._rungs}
    assert rungs == {1: [0.3, 0.4, 0.5], 2: [-2.0, 0.6], 4: [0.8]}


def test_a_time_limit_ends_the_search(ray: Any, tmp_path: Path) -> None:
    trials = searched(100_000, time_limit=4.0)
    assert 0 < len(trials) < 5000
    assert trials[0].status == "complete"
