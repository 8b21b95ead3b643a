"""Trials on Ray Tune, with a reward that costs nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from clbench.runner.resources import CellResources, Resources, connected
from clbench.search import SearchSettings, TrialRecord
from clbench.search.rates import SearchOrigin, SearchSpace
from clbench.search.trials import EpochRecord, quiet_ray

SPACE = SearchSpace(SearchOrigin(2e-5, 2), 4)
EPOCHS = 6
Report = Callable[[Mapping[str, Any]], None]


class Records(dict[int, TrialRecord]):
    """Trial records by number, how often they were written, and how many ran at once."""

    writes = at_once = 0

    def write(self, trial: TrialRecord) -> None:
        self.writes += 1
        self[trial.number] = trial
        running = sum(record.status == "running" for record in self.values())
        self.at_once = max(self.at_once, running)


def recorder_of(
    records: Records, past: list[TrialRecord], workers: int = 1, **settings: Any
) -> Any:
    with quiet_ray():
        from clbench.search.ray_tune import TrialRecorder

    epochs = (EPOCHS // 2, EPOCHS // 2)
    return TrialRecorder(SearchSettings(**settings), SPACE, epochs, past, records.write, workers)


def past_trial(number: int, status: Any, *rewards: float) -> TrialRecord:
    """Return a trial with `rewards` after epochs of D_o, and of D_s from the fourth on."""
    epochs = [
        EpochRecord(stage=n // 3, epoch=n % 3 + 1, scores=[reward], reward=reward, seconds=1.0)
        for n, reward in enumerate(rewards)
    ]
    scores = {"p_o": 0.6, "p_s": 0.6} if status == "complete" else {}
    rates = [number * 1e-5] * 4
    return TrialRecord(number=number, rates=rates, status=status, epochs=epochs, **scores)


class FakeTune:
    """Calls a recorder as Ray Tune does."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.trials: list[Any] = []

    def start(self) -> Any:
        config = SPACE.point(SPACE.flat)
        self.trials.append(SimpleNamespace(trial_id=str(len(self.trials)), config=config))
        self.recorder.on_trial_start(trial=self.trials[-1], trials=self.trials)
        return self.trials[-1]

    def report(self, trial: Any, epoch: int, *scores: float, **more: Any) -> None:
        stage = len(scores) - 1
        result = {
            "reward": sum(scores),
            "stage": stage,
            "stage_epoch": epoch - stage * EPOCHS // 2,
            "scores": list(scores),
            "time_total_s": epoch * 1.5,
            **more,
        }
        self.recorder.on_trial_result(trial=trial, result=result)

    def fail(self, trial: Any, reason: str) -> None:
        result = {"reward": -2.0, "failure": reason, "time_total_s": 3.0}
        self.recorder.on_trial_result(trial=trial, result=result)


def test_complete_trial_is_recorded_epoch_by_epoch() -> None:
    records = Records()
    tune = FakeTune(recorder_of(records, []))
    trial = tune.start()
    assert records[1].status == "running"
    for epoch, scores in enumerate([[0.5], [0.6], [0.7], [0.6, 0.4], [0.6, 0.6], [0.65, 0.8]], 1):
        tune.report(trial, epoch, *scores)
    record = records[1]
    assert record.status == "complete"
    assert (record.p_o_before, record.p_o, record.p_s) == (0.7, 0.65, 0.8)
    assert record.rewards == pytest.approx([0.5, 0.6, 0.7, 1.0, 1.2, 1.45])
    assert [(e.stage, e.epoch) for e in record.epochs[2:4]] == [(0, 3), (1, 1)]
    assert record.seconds == 9.0
    assert record.trial().p == pytest.approx(1.45)  # type: ignore[union-attr]
    assert records.writes == 7  # a killed process loses one epoch at most


def test_stopped_trial_records_its_reward() -> None:
    records = Records()
    tune = FakeTune(recorder_of(records, [past_trial(4, "running", 0.9, 0.9, 0.9, 1.9)]))
    first, second = tune.start(), tune.start()
    for trial, score in ((first, 0.7), (second, 0.5)):
        for epoch in (1, 2, 3):
            tune.report(trial, epoch, 0.9 - 0.5 * score)
        tune.report(trial, 4, score, 0.3, done=trial is second)
    assert records[5].status == "running"
    assert records[6].status == "stopped"
    assert records[6].reason == (
        "reward 0.8000 after epoch 1 of 3 on D_s is not among the best of earlier trials"
    )
    assert records[6].rewards[-1] == 0.8  # what the searcher gets: the sum of both scores


def test_trials_that_asha_stops_are_recorded() -> None:
    records = Records()
    recorder = recorder_of(records, [])
    tune, scheduler, rng = FakeTune(recorder), recorder.scheduler, random.Random(0)
    scheduler.set_search_properties("reward", "max")
    for _ in range(40):
        trial = tune.start()
        scheduler.on_trial_add(None, trial)
        for epoch in range(1, EPOCHS):
            scores = [rng.random() for _ in range(1 if epoch <= 3 else 2)]
            result = {"shift_epochs": max(0, epoch - 3), "reward": sum(scores)}
            done = scheduler.on_trial_result(None, trial, result) == "STOP"
            tune.report(trial, epoch, *scores, done=done)
            if done:
                break
    stopped = [record for record in records.values() if record.status == "stopped"]
    assert len(stopped) > 15
    assert {len(record.epochs) for record in stopped} == {4, 5}


def test_failure_and_dead_worker_are_recorded() -> None:
    records = Records()
    recorder = recorder_of(records, [])
    tune = FakeTune(recorder)
    trial = tune.start()
    tune.report(trial, 1, 0.4)
    tune.fail(trial, "no number")
    assert (records[1].status, records[1].reason, records[1].seconds) == (
        "failed", "no number", 3.0,
    )  # fmt: skip
    assert records[1].rewards == [0.4, -2.0]
    recorder.on_trial_error(trial=tune.start())
    assert records[2].status == "failed"
    assert "its worker died" in recorder.failures[1]
    tune.trials.append(SimpleNamespace(trial_id="2", config=SPACE.point(SPACE.flat)))
    recorder.on_trial_error(trial=tune.trials[-1], trials=tune.trials)  # before it began
    assert (records[3].status, recorder.failures[2]) == ("failed", recorder.failures[1])


def test_interrupted_trial_stays_running_and_is_charged() -> None:
    records = Records()
    recorder = recorder_of(records, [])
    tune = FakeTune(recorder)
    tune.report(tune.start(), 1, 0.4)
    recorder.close()
    assert (records[1].status, records[1].seconds) == ("running", 1.5)


def test_search_ends_after_three_failures_unless_a_trial_succeeded() -> None:
    recorder = recorder_of(Records(), [])
    tune = FakeTune(recorder)
    for _ in range(3):
        assert not recorder.stop_all()
        tune.fail(tune.start(), "why")
    assert recorder.stop_all()
    recorder = recorder_of(Records(), [past_trial(1, "complete", 0.5)])
    tune = FakeTune(recorder)
    for _ in range(3):
        tune.fail(tune.start(), "why")
    assert not recorder.stop_all()


@pytest.mark.parametrize("searcher", ["bayes", "random"])
def test_an_interrupted_search_takes_the_rates_of_an_undisturbed_one(searcher: str) -> None:
    with quiet_ray():
        from clbench.search.ray_tune import DIED, domains

    def proceed(past: list[TrialRecord], trials: int) -> list[TrialRecord]:
        """Return the trials of a session; the last one is interrupted, and the third one's dies."""
        recorder = recorder_of(Records(), past, searcher=searcher)
        recorder.searcher.set_search_properties("reward", "max", domains(SPACE.sweep))
        recorder.scheduler.set_search_properties("reward", "max")
        recorder.setup()
        new = []
        for number in range(len(past) + 1, len(past) + trials + 1):
            rates = SPACE.rates(recorder.searcher.suggest(f"new{number}"))
            reward = sum(map(math.log10, rates)) % 1.0
            epochs = [EpochRecord(stage=1, epoch=1, scores=[], reward=reward, seconds=1.0)]
            trial = TrialRecord(number=number, rates=rates, epochs=epochs, status="complete")
            if len(past) + trials == number:
                trial = trial.model_copy(update={"status": "running"})
            elif sum(t.status != "running" for t in (*past, *new)) == 2:
                trial = trial.model_copy(update={"status": "failed", "reason": DIED})
            dead, result = trial.reason == DIED, {"reward": reward}
            recorder.searcher.on_trial_complete(f"new{number}", result, error=dead)
            new.append(trial)
        return new

    undisturbed = [trial.rates for trial in proceed([], 24)]
    past: list[TrialRecord] = []
    for trials in (2, 3, 1, 16, 6):
        past += proceed(past, trials)
    ended = [trial.rates for trial in past if trial.status != "running"]
    assert [*ended, past[-1].rates] == undisturbed
    assert len({tuple(rates) for rates in undisturbed}) == 24


def test_past_trials_inform_searcher_and_scheduler() -> None:
    past = [
        past_trial(1, "complete", 0.5, 0.6, 0.7, 0.8, 0.9, 1.2),
        past_trial(2, "stopped", 0.1, 0.2, 0.3, 0.9),
        past_trial(3, "failed", 0.4, 0.4, 0.4, 0.7),
        past_trial(4, "running", 0.2),
    ]
    recorder = recorder_of(Records(), past)
    with quiet_ray():
        from clbench.search.ray_tune import domains
    searcher, scheduler = recorder.searcher, recorder.scheduler
    searcher.set_search_properties("reward", "max", domains(SPACE.sweep))
    scheduler.set_search_properties("reward", "max")
    recorder.setup()
    losses = {
        round(doc["misc"]["vals"]["rate0"][0], 9): doc["result"].get("loss")
        for doc in searcher._hpopt_trials.trials
        if doc["result"].get("status") == "ok"
    }
    assert losses == {1e-5: -1.2, 2e-5: -0.9, 3e-5: 2.0}
    assert list(SPACE.rates(searcher.suggest("new"))) == pytest.approx([4e-5] * 4)
    rungs = {epoch: sorted(seen.values()) for epoch, seen in scheduler._brackets[0]._rungs}
    assert rungs == {1: [0.7, 0.8, 0.9], 2: [0.9]}  # no failure, and nothing of D_o


# With Ray


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with connected(Resources(workers=2, threads=1)) as module:
        yield module


def distance_objective() -> Callable[[list[float], Any, Report], None]:
    """Return an objective that rewards rates near 3e-5; it is pickled by value."""
    good, epochs = 3e-5, EPOCHS

    def objective(rates: list[float], setup: Any, report: Report) -> None:
        if max(rates) > setup.get("fails_above", 1.0):
            report({"reward": -2.0, "failure": "too high"})
            return
        distance = sum(abs(math.log10(rate / good)) for rate in rates) / len(rates)
        for epoch in range(1, epochs + 1):
            stage = 0 if epoch <= epochs // 2 else 1
            score = max(0.0, 0.4 - 0.2 * distance + 0.01 * epoch)
            scores = [score, score][: stage + 1]
            stage_epoch = epoch - stage * epochs // 2
            report(
                {
                    "reward": sum(scores),
                    "stage": stage,
                    "stage_epoch": stage_epoch,
                    "scores": scores,
                }
            )

    return objective


def searched(
    trials: int, past: list[TrialRecord] | None = None, workers: int = 1, **changes: Any
) -> list[TrialRecord]:
    """Return the trials of a search by number."""
    setup = {"fails_above": changes.pop("fails_above", 1.0)}
    records = Records()
    recorder = recorder_of(records, past or [], workers, **changes)
    with quiet_ray():
        from clbench.search.ray_tune import run_trials

        resources = CellResources(1, 0.0)
        run_trials(distance_objective(), setup, trials, recorder, resources)
    assert records.at_once <= workers
    return [records[number] for number in sorted(records)]


@pytest.mark.slow
def test_search_starts_flat_stops_weak_trials_and_learns_of_past(ray: Any, capfd: Any) -> None:
    trials = searched(8)
    assert [trial.number for trial in trials] == list(range(1, 9))
    assert trials[0].rates == SPACE.flat
    assert trials[0].status == "complete"
    assert len({tuple(trial.rates) for trial in trials}) == 8
    stopped = [trial for trial in trials if trial.status == "stopped"]
    assert stopped
    assert {len(trial.epochs) for trial in stopped} <= {4, 5}
    interrupted = TrialRecord(number=9, rates=[1e-6, 1e-5, 1e-4, 1e-3])
    more = searched(2, [*trials, interrupted])
    assert [trial.number for trial in more] == [10, 11]
    assert more[0].rates == pytest.approx(interrupted.rates)
    assert more[1].rates not in [trial.rates for trial in trials]
    assert capfd.readouterr() == ("", "")  # Ray and autogluon are silent


@pytest.mark.slow
def test_seed_decides_which_rates_are_tried(ray: Any) -> None:
    first, again = searched(6), searched(6)
    assert [trial.rates for trial in first] == [trial.rates for trial in again]
    assert [trial.status for trial in first] == [trial.status for trial in again]
    assert searched(6, seed=1)[1].rates != first[1].rates


@pytest.mark.slow
def test_early_stopping_saves_epochs(ray: Any) -> None:
    trials = searched(30)
    assert sum(len(trial.epochs) for trial in trials) < 0.85 * 30 * EPOCHS


@pytest.mark.slow
def test_random_search_without_scheduler_completes_every_trial(ray: Any) -> None:
    trials = searched(6, searcher="random", scheduler="none", workers=2)
    assert [trial.status for trial in trials] == ["complete"] * 6
    assert trials[0].rates == SPACE.flat
    more = searched(4, [*trials, TrialRecord(number=7, rates=[1e-5] * 4)], searcher="random")
    assert more[0].rates == pytest.approx([1e-5] * 4)


@pytest.mark.slow
def test_failed_trials_do_not_end_a_search_unless_all_fail(ray: Any) -> None:
    trials = searched(12, fails_above=5e-4)
    failed = [trial for trial in trials if trial.status == "failed"]
    assert len(trials) == 12
    assert failed
    assert {trial.reason for trial in failed} == {"too high"}
    trials = searched(20, fails_above=1e-9)
    assert 3 <= len(trials) < 8
    assert {trial.status for trial in trials} == {"failed"}


@pytest.mark.slow
def test_time_limit_ends_a_search(ray: Any) -> None:
    trials = searched(100_000, time_limit=4.0)
    assert 0 < len(trials) < 5000
    assert trials[0].status == "complete"
