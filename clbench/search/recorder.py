"""Writes down what the trials of a search report, on the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clbench.search.halving import Halving
from clbench.search.objective import EPOCH, REWARD
from clbench.search.record import EpochRecord, Status, TrialRecord

GIVE_UP = 3
"""Failures of the first trials, one after another, after which a search ends: they all would."""


def ended(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Those that were not cut off, which are tried again and count then."""
    return [trial for trial in trials if trial.status != "running"]


class Recorder:
    """The trials of a search, as they go on.

    Parameters
    ----------
    past
        Trials of before.
    epochs
        Of a whole trial.
    halving
        The scheduler's rule; None if no trial is stopped early.
    changed
        Told of a trial when it began, after each epoch, and when it ended.
    clock
        Seconds that only go forward.

    Attributes
    ----------
    failures
        Why trials failed, in their order.
    """

    def __init__(
        self,
        past: Sequence[TrialRecord],
        epochs: int,
        halving: Halving | None,
        changed: Callable[[TrialRecord], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = 1 + max((trial.number for trial in past), default=0)
        self._epochs = epochs
        self._halving = halving
        self._changed = changed
        self._clock = clock
        self._trials: dict[str, TrialRecord] = {}
        self._failures: dict[str, str] = {}
        self._cutoffs: dict[str, str] = {}
        milestones = halving.milestones(epochs) if halving else []
        self._seen: dict[int, list[float]] = {milestone: [] for milestone in milestones}
        self._began: dict[str, float] = {}
        self._ended: list[Status] = []
        self.failures: list[str] = []
        self._hope = any(trial.status in ("complete", "stopped") for trial in past)
        for trial in ended(past):
            for epoch, reward in enumerate(trial.rewards, 1):
                self._seen.get(epoch, []).append(reward)

    @property
    def hopeless(self) -> bool:
        """Whether the first trials have all failed, so that others would."""
        return not self._hope and self._ended[:GIVE_UP] == ["failed"] * GIVE_UP

    def began(self, key: str, position: int, rates: Sequence[float]) -> None:
        """A trial begins.

        Parameters
        ----------
        key
            What it will be called here.
        position
            Among those that the searcher has proposed now, from 0.
        rates
            From the embeddings to the head.
        """
        number = self._first + position
        self._began[key] = self._clock()
        self._put(key, TrialRecord(number=number, rates=list(rates), started=_now()))

    def reported(self, key: str, report: Mapping[str, Any]) -> None:
        """A trial has ended an epoch, or failed in it."""
        trial = self._trials[key]
        seconds = float(report["seconds"])
        if "failure" in report:
            self._failures[key] = str(report["failure"])
            self._weigh(key, int(report[EPOCH]), float(report[REWARD]))
            self._put(key, trial.model_copy(update={"seconds": seconds}))
            return
        scores = [float(score) for score in report["scores"]]
        epoch = EpochRecord(
            stage=int(report["stage"]),
            epoch=int(report["stage_epoch"]),
            scores=scores,
            reward=float(report[REWARD]),
            seconds=seconds,
        )
        changes: dict[str, Any] = {"epochs": [*trial.epochs, epoch], "seconds": seconds}
        if epoch.stage == 0:
            changes["p_o_before"] = scores[0]
        self._put(key, trial.model_copy(update=changes))
        self._weigh(key, int(report[EPOCH]), epoch.reward)

    def ended(self, key: str) -> None:
        """A trial has come to its end, early or not."""
        trial = self._trials[key]
        changes: dict[str, Any] = {"status": "complete", "finished": _now()}
        done = len(trial.epochs)
        if key in self._failures:
            changes |= {"status": "failed", "reason": self._failures[key]}
            self.failures.append(self._failures[key])
        elif done == self._epochs:
            changes["p_o"], changes["p_s"] = trial.epochs[-1].scores
        elif key in self._cutoffs:
            changes |= {"status": "stopped", "reason": self._cutoffs[key]}
        else:
            return  # cut off, as by a time limit: it stays as if it still ran
        self._ended.append(changes["status"])
        self._put(key, trial.model_copy(update=changes))

    def crashed(self, key: str, reason: str) -> None:
        """A trial's worker is gone."""
        self._ended.append("failed")
        self.failures.append(reason)
        changes: dict[str, Any] = {"status": "failed", "reason": reason, "finished": _now()}
        changes["seconds"] = self._clock() - self._began[key]
        self._put(key, self._trials[key].model_copy(update=changes))

    def close(self) -> None:
        """Charge trials that were cut off with the time that they took until now."""
        for key, trial in self._trials.items():
            if trial.status == "running":
                seconds = max(trial.seconds, self._clock() - self._began[key])
                self._put(key, trial.model_copy(update={"seconds": seconds}))

    @property
    def spent(self) -> float:
        """Seconds since the first trial of now began."""
        return self._clock() - min(self._began.values()) if self._began else 0.0

    def _weigh(self, key: str, epoch: int, reward: float) -> None:
        """Note a reward at a milestone, and what the scheduler compares it with."""
        others = self._seen.get(epoch)
        if others is None or self._halving is None:
            return
        if others and reward < (cutoff := self._halving.cutoff(others)):
            self._cutoffs[key] = (
                f"after epoch {epoch} of {self._epochs} its reward of {reward:.4f} was below "
                f"{cutoff:.4f}, the limit set by the {len(others)} before"
            )
        others.append(reward)

    def _put(self, key: str, trial: TrialRecord) -> None:
        self._trials[key] = trial
        self._changed(trial)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
