"""Searcher, scheduler and trials as Ray Tune and autogluon.core know them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autogluon.common import space as spaces
from autogluon.core.hpo import ray_hpo
from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.hyperopt import HyperOptSearch

from clbench.evaluation.resources import CellResources
from clbench.search.objective import EPOCH, REWARD
from clbench.search.record import TrialRecord
from clbench.search.recorder import Recorder, ended
from clbench.search.space import Space
from clbench.search.tuning import Objective, Tuning
from clbench.seeds import stream_seed


def run(
    objective: Objective,
    pair: Any,
    tuning: Tuning,
    past: Sequence[TrialRecord],
    recorder: Recorder,
    needs: CellResources,
    workers: int | None,
) -> None:
    """Search; see `clbench.search.tuning.tune`."""
    space = tuning.space
    known = ended(past)
    searcher = _searcher(tuning, past, known)
    scheduler = _scheduler(tuning)
    with tempfile.TemporaryDirectory(prefix="clbench-search-") as folder:
        ray_hpo.run(
            _trial,
            {"objective": objective, "pair": pair, "keys": space.keys},
            {
                key: spaces.Real(space.lowest, space.highest, default=flat, log=True)
                for key, flat in zip(space.keys, space.flat, strict=True)
            },
            {"num_trials": tuning.trials, "searcher": searcher, "scheduler": scheduler},
            metric=REWARD,
            mode="max",
            save_dir=str(Path(folder) / "trials"),
            ray_tune_adapter=_Adapter(needs),
            verbose=0,
            tune_config_kwargs={"max_concurrent_trials": workers, "reuse_actors": True},
            run_config_kwargs={
                "callbacks": [
                    _Lessons(searcher, scheduler, known),
                    _Told(recorder, space),
                    JsonLoggerCallback(),
                ],
                "stop": _Enough(recorder, tuning.time_limit),
            },
        )


def _searcher(tuning: Tuning, past: Sequence[TrialRecord], known: Sequence[TrialRecord]) -> Any:
    """Begins with what was cut off, or with the flat rate, once it has learned what is known."""
    space = tuning.space
    first = [trial.rates for trial in past if trial.status == "running"] if past else [space.flat]
    first = list(map(list, dict.fromkeys(map(tuple, first))))  # cut off twice, tried once
    seed = stream_seed("search", tuning.seed, len(past)) % 2**32
    if tuning.searcher == "random":
        points = [space.config(rates) for rates in first]
        return BasicVariantGenerator(points_to_evaluate=points or None, random_state=seed)
    points = [space.config(rates) for rates in [*(trial.rates for trial in known), *first]]
    return HyperOptSearch(points_to_evaluate=points or None, random_state_seed=seed)


def _scheduler(tuning: Tuning) -> Any:
    if tuning.halving is None:
        return FIFOScheduler()
    return AsyncHyperBandScheduler(
        time_attr=EPOCH,
        max_t=tuning.epochs,
        grace_period=tuning.halving.grace,
        reduction_factor=tuning.halving.reduction,
        brackets=1,
    )


def _trial(config: dict[str, Any], objective: Objective, pair: Any, keys: list[str]) -> None:
    """What Ray Tune runs in a worker."""
    objective([float(config[key]) for key in keys], pair, lambda told: tune.report(dict(told)))


class _Unsaved:
    """Ray Tune saves its parts to go on by itself; what is to be kept, the records have."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Lessons(_Unsaved, tune.Callback):  # type: ignore[misc]
    """Teaches searcher and scheduler what a search that goes on has found before."""

    def __init__(self, searcher: Any, scheduler: Any, known: Sequence[TrialRecord]) -> None:
        self._searcher, self._scheduler, self._known = searcher, scheduler, known

    def setup(self, **info: Any) -> None:
        """Called when both know what is searched, and before either is asked."""
        if isinstance(self._searcher, HyperOptSearch):
            for trial in self._known:
                key = f"past{trial.number}"
                self._searcher.suggest(key)  # its first points are these, in this order
                self._searcher.on_trial_complete(key, {REWARD: trial.rewards[-1]})
        if isinstance(self._scheduler, AsyncHyperBandScheduler):
            for trial in self._known:
                self._replay(trial)

    def _replay(self, trial: TrialRecord) -> None:
        stub = SimpleNamespace(trial_id=f"past{trial.number}")
        self._scheduler.on_trial_add(None, stub)
        for epoch, reward in enumerate(trial.rewards, 1):
            self._scheduler.on_trial_result(None, stub, {EPOCH: epoch, REWARD: reward})
        self._scheduler.on_trial_remove(None, stub)


class _Told(_Unsaved, tune.Callback):  # type: ignore[misc]
    """Passes on what happens."""

    def __init__(self, recorder: Recorder, space: Space) -> None:
        self._recorder, self._space = recorder, space

    def on_trial_start(self, trial: Any, trials: list[Any], **info: Any) -> None:
        """Called when it begins, which of two proposed together may be the second one first."""
        rates = self._space.rates(trial.config)
        self._recorder.began(trial.trial_id, trials.index(trial), rates)

    def on_trial_result(self, trial: Any, result: Any, **info: Any) -> None:
        """Called with each report."""
        self._recorder.reported(trial.trial_id, result)

    def on_trial_complete(self, trial: Any, **info: Any) -> None:
        """Called when it came to its end or was stopped."""
        self._recorder.ended(trial.trial_id)

    def on_trial_error(self, trial: Any, **info: Any) -> None:
        """Called when its worker is gone; what trials raise is a report."""
        self._recorder.crashed(
            trial.trial_id, "its worker died, perhaps killed for the memory it took"
        )


class _Enough(_Unsaved, tune.Stopper):  # type: ignore[misc]
    """Ends a search whose time is over, or of which nothing can come."""

    def __init__(self, recorder: Recorder, limit: float | None) -> None:
        self._recorder, self._limit = recorder, limit

    def __call__(self, trial_id: str, result: Any) -> bool:
        """No trial by itself."""
        return False

    def stop_all(self) -> bool:
        """All, if the time is over or the first ones failed."""
        late = self._limit is not None and self._recorder.spent > self._limit
        return late or self._recorder.hopeless


class _Adapter(ray_hpo.RayTuneAdapter):  # type: ignore[misc]
    """Says what a trial takes of a node."""

    supported_searchers = ["bayes", "random"]
    supported_schedulers = ["FIFO", "ASHA"]
    adapter_type = "clbench"

    def __init__(self, needs: CellResources) -> None:
        super().__init__()
        self._needs = needs

    def get_resource_calculator(self, **options: Any) -> Any:
        """Not asked for, as the resources are given."""
        raise NotImplementedError

    def get_resources_per_trial(self, *given: Any, **options: Any) -> dict[str, float]:
        """The same for every trial."""
        return {"cpu": self._needs.threads, "gpu": self._needs.gpus}

    def trainable_args_update_method(self, trainable_args: dict[str, Any]) -> dict[str, Any]:
        """Nothing to change."""
        return trainable_args
