"""Run the trials of a search on Ray Tune, through autogluon.core."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from autogluon.common.space import Real
from autogluon.core.hpo import ray_hpo
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.hyperopt import HyperOptSearch

from clbench.core.errors import count
from clbench.core.seeds import stream_seed
from clbench.runner.resources import CellResources
from clbench.search.objective import Report
from clbench.search.search_folder import EpochRecord, TrialRecord
from clbench.search.space import SearchSettings, SearchSpace

SHIFT_EPOCHS = "shift_epochs"
"""Key of the epochs trained on D_s, which decide when a trial is compared with others."""
MAX_FAILURES = 3
"""A search ends after this many failures if no trial has succeeded."""


class _NotSaved:
    """Base of callbacks without saved state: Ray Tune pickles them, but trial files hold it all."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class TrialRecorder(_NotSaved, tune.Callback, tune.Stopper):  # type: ignore[misc]
    """Keeps a record of every trial, and stops a search that fails or is out of time.

    A whole trial has `epochs` epochs on D_o and on D_s; `past` are the trials of earlier sessions.
    `write` is called with each record that changes.
    """

    def __init__(
        self,
        settings: SearchSettings,
        space: SearchSpace,
        epochs: tuple[int, int],
        past: Sequence[TrialRecord],
        write: Callable[[TrialRecord], None],
    ) -> None:
        self.settings, self.space, self.epochs = settings, space, epochs
        self.interrupted = [trial for trial in past if trial.status == "running"]
        self.ended = [trial for trial in past if trial.status != "running"]
        self.past = list(past)
        self.failures: list[str] = []
        self._write = write
        self._succeeded = any(trial.status != "failed" for trial in self.ended)
        self._first = 1 + max((trial.number for trial in past), default=0)
        self._records: dict[str, TrialRecord] = {}
        self._start: dict[str, float] = {}

    def on_trial_start(self, trial: Any, trials: list[Any], **info: Any) -> None:
        """Start a record; trials proposed together may start in any order."""
        self._start[trial.trial_id] = time.monotonic()
        number = self._first + trials.index(trial)
        rates = self.space.rates(trial.config)
        self._update(trial, TrialRecord(number=number, rates=rates, started=_now()))

    def on_trial_result(self, trial: Any, result: dict[str, Any], **info: Any) -> None:
        """Record an epoch or a failure; ``done`` in `result`: the scheduler stops the trial."""
        seconds = float(result["time_total_s"])
        if "failure" in result:
            self._fail(trial, str(result["failure"]), seconds)
            return
        record = self._records[trial.trial_id]
        epoch = EpochRecord(
            stage=result["stage"],
            epoch=result["stage_epoch"],
            scores=result["scores"],
            reward=result["reward"],
            seconds=seconds,
        )
        changes: dict[str, Any] = {"epochs": [*record.epochs, epoch], "seconds": seconds}
        if epoch.stage == 0:
            changes["p_o_before"] = epoch.scores[0]
        if len(changes["epochs"]) == sum(self.epochs):
            changes["p_o"], changes["p_s"] = epoch.scores
            changes |= {"status": "complete", "finished": _now()}
        elif result.get("done"):
            reason = self._stop_reason(trial, epoch)
            changes |= {"status": "stopped", "reason": reason, "finished": _now()}
        self._succeeded = self._succeeded or "status" in changes
        self._update(trial, record.model_copy(update=changes))

    def on_trial_error(self, trial: Any, **info: Any) -> None:
        """Record that a worker died; exceptions in a trial are reported as results instead."""
        seconds = time.monotonic() - self._start[trial.trial_id]
        self._fail(trial, "its worker died, perhaps out of memory", seconds)

    def __call__(self, trial_id: str, result: Any) -> bool:
        """Return False: stopping single trials is up to the scheduler."""
        return False

    def stop_all(self) -> bool:
        """Whether the time limit, from the start of the first trial, is over or all trials fail."""
        limit, start = self.settings.time_limit, min(self._start.values(), default=None)
        late = limit is not None and start is not None and time.monotonic() - start > limit
        return late or self.all_failed

    @property
    def all_failed(self) -> bool:
        """Whether only failures have occurred, and at least `MAX_FAILURES`."""
        return not self._succeeded and len(self.failures) >= MAX_FAILURES

    def close(self) -> None:
        """Add the time until now to the cost of interrupted trials."""
        for key, record in self._records.items():
            if record.status == "running":
                seconds = max(record.seconds, time.monotonic() - self._start[key])
                self._write(record.model_copy(update={"seconds": seconds}))

    def _fail(self, trial: Any, reason: str, seconds: float) -> None:
        self.failures.append(reason)
        changes = {"status": "failed", "reason": reason, "seconds": seconds, "finished": _now()}
        self._update(trial, self._records[trial.trial_id].model_copy(update=changes))

    def _stop_reason(self, trial: Any, epoch: EpochRecord) -> str:
        """Return the comparison by which `AsyncHyperBandScheduler` stops a trial."""
        others = [record for key, record in self._records.items() if key != trial.trial_id]
        others += self.ended
        rewards = [
            other.reward
            for record in others
            for other in record.epochs
            if (other.stage, other.epoch) == (epoch.stage, epoch.epoch)
        ]
        cutoff = np.percentile(rewards, 100.0 * (1.0 - 1.0 / self.settings.reduction))
        return (
            f"reward {epoch.reward:.4f} after epoch {epoch.epoch} of {self.epochs[1]} on D_s is "
            f"below the cutoff {cutoff:.4f} of {count(len(rewards), 'earlier trial')}"
        )

    def _update(self, trial: Any, record: TrialRecord) -> None:
        self._records[trial.trial_id] = record
        self._write(record)


class PastTrials(_NotSaved, tune.Callback):  # type: ignore[misc]
    """Replays the trials of earlier sessions to searcher and scheduler.

    Ray Tune itself restores an experiment only from its own pickles and with the original number
    of trials. `HyperOptSearch` accepts no evaluated points, so they are its first suggestions.
    """

    def __init__(self, searcher: Any, scheduler: Any, trials: Sequence[TrialRecord]) -> None:
        self._searcher, self._scheduler, self._trials = searcher, scheduler, trials

    def setup(self, **info: Any) -> None:
        """Called once searcher and scheduler have the search space, before the first trial."""
        for trial in self._trials:
            stub = SimpleNamespace(trial_id=f"past{trial.number}")
            if isinstance(self._searcher, HyperOptSearch):
                self._searcher.suggest(stub.trial_id)
                result = {"reward": trial.rewards[-1]}
                self._searcher.on_trial_complete(stub.trial_id, result)
            if isinstance(self._scheduler, AsyncHyperBandScheduler):
                self._scheduler.on_trial_add(None, stub)
                for epoch in trial.epochs:
                    result = {SHIFT_EPOCHS: _shift_epochs(epoch.stage, epoch.epoch)}
                    result["reward"] = epoch.reward
                    self._scheduler.on_trial_result(None, stub, result)


class _Adapter(ray_hpo.RayTuneAdapter):  # type: ignore[misc]
    """Gives every trial the same resources."""

    adapter_type = "clbench"
    supported_searchers = ["bayes", "random"]
    supported_schedulers = ["FIFO", "ASHA"]
    get_resource_calculator = None

    def __init__(self, resources: CellResources) -> None:
        super().__init__()
        self._resources = resources

    def get_resources_per_trial(self, *arguments: Any, **options: Any) -> dict[str, float]:
        return {"cpu": self._resources.threads, "gpu": self._resources.gpus}

    def trainable_args_update_method(self, trainable_args: dict[str, Any]) -> dict[str, Any]:
        return trainable_args


def run_trials(
    objective: Callable[[list[float], Any, Report], None],
    setup: Any,
    trials: int,
    recorder: TrialRecorder,
    resources: CellResources,
    workers: int | None,
) -> None:
    """Run `trials` trials on the connected Ray; end early if the time is over or all fail.

    Interrupted trials of earlier sessions come first; a new search starts with the flat rate.
    Workers call ``objective(rates, setup, report)``; `setup` is sent to each once. At most
    `workers` trials run at a time; None means as many as the cluster has room for.
    """
    space = recorder.space
    searcher, scheduler = make_searcher(recorder), make_scheduler(recorder)
    with tempfile.TemporaryDirectory(prefix="clbench-search-") as folder:
        ray_hpo.run(
            _run_in_worker,
            {"objective": objective, "setup": setup, "space": space},
            {key: Real(space.lowest, space.highest, log=True) for key in space.keys},
            {"num_trials": trials, "searcher": searcher, "scheduler": scheduler},
            metric="reward",
            mode="max",
            save_dir=str(Path(folder) / "trials"),
            ray_tune_adapter=_Adapter(resources),
            verbose=0,
            tune_config_kwargs={"max_concurrent_trials": workers, "reuse_actors": True},
            run_config_kwargs={
                "callbacks": [PastTrials(searcher, scheduler, recorder.ended), recorder],
                "stop": recorder,
            },
        )


def make_searcher(recorder: TrialRecorder) -> Any:
    """Return a searcher whose first points are past and interrupted trials, or the flat rate."""
    settings, space, past = recorder.settings, recorder.space, recorder.past
    initial = [trial.rates for trial in recorder.interrupted] if past else [space.flat]
    points = [space.config(rates) for rates in dict.fromkeys(map(tuple, initial))]
    seed = stream_seed("search", settings.seed, len(past)) % 2**32
    if settings.searcher == "random":
        return BasicVariantGenerator(points_to_evaluate=points or None, random_state=seed)
    points = [space.config(trial.rates) for trial in recorder.ended] + points
    return HyperOptSearch(points_to_evaluate=points or None, random_state_seed=seed)


def make_scheduler(recorder: TrialRecorder) -> Any:
    """Return ASHA, or a scheduler that stops no trial.

    ASHA stops trials on D_s only: what a trial scores on D_o before the shift is no part of the
    reward, and the searcher gets p_o + p_s of every trial.
    """
    settings, epochs = recorder.settings, recorder.epochs[1]
    if settings.scheduler == "none" or settings.grace >= epochs:
        return FIFOScheduler()
    return AsyncHyperBandScheduler(
        time_attr=SHIFT_EPOCHS,
        max_t=epochs,
        grace_period=settings.grace,
        reduction_factor=settings.reduction,
    )


def _run_in_worker(config: dict[str, Any], objective: Any, setup: Any, space: SearchSpace) -> None:
    def report(result: Mapping[str, Any]) -> None:
        time = {}
        if "failure" not in result:
            time[SHIFT_EPOCHS] = _shift_epochs(result["stage"], result["stage_epoch"])
        tune.report({**result, **time})

    objective(space.rates(config), setup, report)


def _shift_epochs(stage: int, epoch: int) -> int:
    """Return the epochs trained on D_s after an epoch of a stage."""
    return epoch if stage == 1 else 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
