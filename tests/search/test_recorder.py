from __future__ import annotations

from typing import Any

import pytest

from clbench.search.halving import Halving
from clbench.search.record import EpochRecord, TrialRecord
from clbench.search.recorder import Recorder

EPOCH = EpochRecord(stage=1, epoch=2, scores=[0.5, 0.5], reward=1.0, seconds=1.0)


class Kept(list[TrialRecord]):
    @property
    def last(self) -> TrialRecord:
        return self[-1]


def report(epoch: int, *scores: float, of: int = 2) -> dict[str, Any]:
    return {
        "reward": sum(scores),
        "epoch": epoch,
        "stage": 0 if epoch <= of else 1,
        "stage_epoch": epoch if epoch <= of else epoch - of,
        "scores": list(scores),
        "seconds": epoch * 1.5,
    }


def test_a_trial_from_its_beginning_to_its_end() -> None:
    kept = Kept()
    recorder = Recorder([], 4, Halving(), kept.append)
    recorder.began("a", 0, [1e-5, 2e-5, 3e-5])
    assert (kept.last.number, kept.last.status) == (1, "running")
    for told in (report(1, 0.5), report(2, 0.7), report(3, 0.6, 0.4), report(4, 0.65, 0.8)):
        recorder.reported("a", told)
    recorder.ended("a")
    trial = kept.last
    assert trial.status == "complete"
    assert (trial.p_o_before, trial.p_o, trial.p_s) == (0.7, 0.65, 0.8)
    assert [epoch.reward for epoch in trial.epochs] == pytest.approx([0.5, 0.7, 1.0, 1.45])
    assert [(epoch.stage, epoch.epoch) for epoch in trial.epochs] == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
    ]
    assert trial.seconds == 6.0
    made = trial.trial()
    assert made is not None
    assert made.p == pytest.approx(1.45)
    assert made.p_o_before == 0.7
    assert len(kept) == 6  # written at every step, so that a kill loses an epoch at most


def test_a_stopped_trial_says_why() -> None:
    kept = Kept()
    recorder = Recorder([], 4, Halving(), kept.append)
    for number, (key, reward) in enumerate((("a", 0.5), ("b", 0.7), ("c", 0.55))):
        recorder.began(key, number, [1e-5] * 3)
        recorder.reported(key, report(1, reward))
    recorder.ended("c")
    assert kept.last.number == 3
    assert kept.last.status == "stopped"
    assert kept.last.reason == (
        "after epoch 1 of 4 its reward of 0.5500 was below 0.6000, the limit set by the 2 before"
    )
    assert kept.last.trial() is None


def test_the_past_counts_for_the_limit_and_for_the_numbers() -> None:
    epochs = [EpochRecord(stage=0, epoch=1, scores=[0.9], reward=0.9, seconds=1.0)]
    past = [
        TrialRecord(number=4, rates=[1e-5] * 3, status="running", epochs=epochs),
        TrialRecord(number=3, rates=[1e-5] * 3, status="stopped", epochs=epochs),
        TrialRecord(number=2, rates=[1e-5] * 3, status="failed", reason="it broke"),
    ]
    kept = Kept()
    recorder = Recorder(past, 4, Halving(), kept.append)
    recorder.began("a", 0, [1e-5] * 3)
    recorder.reported("a", report(1, 0.4))
    recorder.ended("a")  # above the limit of -0.55: the time was over, say
    assert (kept.last.number, kept.last.status) == (5, "running")
    # Of 0.9 and -2; one that was cut off is tried again, and counts then.
    recorder.began("b", 1, [1e-5] * 3)
    recorder.reported("b", report(1, -0.6))
    recorder.ended("b")
    assert "below 0.4000, the limit set by the 3 before" in str(kept.last.reason)


def test_a_failed_trial_and_one_whose_worker_died() -> None:
    kept = Kept()
    recorder = Recorder([], 4, None, kept.append)
    recorder.began("a", 0, [1e-5] * 3)
    recorder.reported("a", report(1, 0.4))
    recorder.reported("a", {"reward": 0.0, "epoch": 2, "failure": "no number", "seconds": 3.0})
    recorder.ended("a")
    assert (kept.last.status, kept.last.reason, kept.last.seconds) == ("failed", "no number", 3.0)
    assert kept.last.rewards == [0.4, -2.0]
    recorder.began("b", 1, [1e-5] * 3)
    recorder.crashed("b", "its worker died")
    assert (kept.last.number, kept.last.status) == (2, "failed")
    assert recorder.failures == ["no number", "its worker died"]


def test_a_trial_that_is_cut_off_stays_as_it_is() -> None:
    kept = Kept()
    now = [100.0]
    recorder = Recorder([], 4, Halving(), kept.append, lambda: now[0])
    assert recorder.spent == 0.0
    recorder.began("a", 0, [1e-5] * 3)
    recorder.reported("a", report(1, 0.4))
    recorder.ended("a")  # as the time limit does it
    assert kept.last.status == "running"
    now[0] = 130.0
    assert recorder.spent == 30.0
    recorder.close()
    assert (kept.last.status, kept.last.seconds) == ("running", 30.0)  # it is charged


def test_three_failures_at_the_beginning_are_enough() -> None:
    def fail(recorder: Recorder, *keys: str) -> None:
        for number, key in enumerate(keys):
            recorder.began(key, number, [1e-5] * 3)
            recorder.crashed(key, "why")

    recorder = Recorder([], 4, None, lambda trial: None)
    fail(recorder, "a", "b")
    assert not recorder.hopeless
    fail(recorder, "c")
    assert recorder.hopeless
    good = TrialRecord(
        number=1, rates=[1e-5] * 3, status="complete", p_o=0.5, p_s=0.5, epochs=[EPOCH]
    )
    recorder = Recorder([good], 4, None, lambda trial: None)
    fail(recorder, "a", "b", "c")
    assert not recorder.hopeless
