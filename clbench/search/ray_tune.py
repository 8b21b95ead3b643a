"""The searchers of `search` and `tune`, and the trials of a search, which Ray Tune runs."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler
from ray.tune.search import hyperopt

from clbench.core.errors import explain
from clbench.core.seeds import stream_seed
from clbench.measure.rows import PreparedScenario
from clbench.methods.by_depth import Layerwise
from clbench.models.classifier import TaskModel
from clbench.models.groups import Division
from clbench.runner.cell_runner import CellRunner
from clbench.runner.ray_worker import WorkerSetup
from clbench.runner.resources import CellResources
from clbench.runner.run_plan import computing, now
from clbench.runner.start import start_model
from clbench.search.plan import SearchPlan, SearchSettings
from clbench.search.rates import SearchSpace
from clbench.search.trials import FAILED, EpochRecord, TrialRecord
from clbench.suite.baselines import Range, Sweep
from clbench.suite.plan import Cell

SHIFT_EPOCHS = "shift_epochs"
"""Key of the epochs trained on D_s, which decide when a trial is compared with others."""
DIED = "its worker died, perhaps out of memory"
MAX_FAILURES = 3
"""A search ends after this many failures if no trial has succeeded."""


def domains(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as a search space of Ray Tune, of positions where values are listed."""
    space = dict[str, Any]()
    for key, axis in sweep.items():
        if not isinstance(axis, Range):
            space[key] = tune.choice([*range(len(axis))])  # a value may be a list
        elif axis.is_whole:
            kind = tune.lograndint if axis.scale == "log" else tune.randint
            space[key] = kind(int(axis.low), int(axis.high) + 1)
        else:
            kind = tune.loguniform if axis.scale == "log" else tune.uniform
            space[key] = kind(axis.low, axis.high)
    return space


def make_searcher(
    points: Sequence[Mapping[str, Any]], seed: int, searcher: str, random_points: int
) -> hyperopt.HyperOptSearch:
    """Return a searcher that suggests `points` first and draws at random below `random_points`.

    With the `searcher` ``"random"`` it always does.
    """
    return hyperopt.HyperOptSearch(
        points_to_evaluate=[dict(point) for point in points] or None,
        n_initial_points=10**9 if searcher == "random" else random_points,
        random_state_seed=seed,
    )


def tell(
    searcher: hyperopt.HyperOptSearch, scores: Sequence[float | None]
) -> list[Mapping[str, Any]]:
    """Tell a searcher the scores of its next points, and return these; None: no result."""
    points = []
    for number, score in enumerate(scores):
        points.append(searcher.suggest(f"past{number}"))
        result = {} if score is None else {"reward": score}
        searcher.on_trial_complete(f"past{number}", result, error=score is None)
    return points


@dataclass(frozen=True)
class TrialSetup:
    """The data that all trials of a search share; sent to each worker once."""

    cell: Cell
    scenario: PreparedScenario
    model: TaskModel  # each worker trains its own copy
    division: Division
    worker: WorkerSetup

    @classmethod
    def of(cls, plan: SearchPlan, scenario: PreparedScenario, threads: int) -> Self:
        """Return the setup of a search for workers with this number of threads."""
        (cell,) = plan.run.cells
        worker = WorkerSetup.of(plan.run, threads)
        return cls(cell, scenario, start_model(cell, scenario), plan.space.origin.division, worker)


def run_trial(
    rates: list[float], setup: TrialSetup, report: Callable[[Mapping[str, Any]], None]
) -> None:
    """Train both stages at `rates`, in a worker.

    After every epoch, `report` is called with ``reward`` (sum of the scores of the tasks so far),
    ``stage``, ``stage_epoch`` and ``scores``. An error becomes a final report with ``failure`` and
    the reward `FAILED`, as the searcher learns nothing from a trial that raises.
    """

    def after_epoch(stage: int, epoch: int, row: list[dict[str, float] | None]) -> None:
        scores = [s for s in setup.scenario.scenario.main_scores(row) if s is not None]
        report({"reward": sum(scores), "stage": stage, "stage_epoch": epoch, "scores": scores})

    try:
        setup.worker.apply()
        with computing(setup.worker.plan, setup.worker.threads) as compute:
            CellRunner(
                setup.cell,
                setup.scenario,
                Layerwise(rates=rates, division=setup.division),
                compute,
                after_epoch=after_epoch,
                model=setup.model,
            ).run()
    except Exception as error:  # not SystemExit, by which Ray Tune ends a trial
        report({"reward": FAILED, "failure": explain(error)})


class TrialRecorder(tune.Callback, tune.Stopper):  # type: ignore[misc]
    """Keeps a record of every trial, and stops a search that fails or is out of time.

    A whole trial has `epochs` epochs on D_o and on D_s; `past` are the trials of earlier sessions,
    of which `searcher` and `scheduler` learn. `write` is called with each record that changes. At
    most `workers` trials run at a time; None means as many as the cluster has room for.
    """

    def __init__(
        self,
        settings: SearchSettings,
        space: SearchSpace,
        epochs: tuple[int, int],
        past: Sequence[TrialRecord],
        write: Callable[[TrialRecord], None],
        workers: int | None = None,
    ) -> None:
        self.settings, self.space, self.epochs, self.workers = settings, space, epochs, workers
        self.ended = [trial for trial in past if trial.status != "running"]
        self._rewards = [None if t.reason == DIED else t.rewards[-1] for t in self.ended]
        self.failures: list[str] = []
        self.searcher, self.scheduler = self._make_searcher(past), self._make_scheduler()
        self._write = write
        self._succeeded = any(trial.status != "failed" for trial in self.ended)
        self._first = 1 + max((trial.number for trial in past), default=0)
        self._records: dict[str, TrialRecord] = {}
        self._start: dict[str, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Ray Tune pickles its callbacks, but the files of trials hold it all."""
        return {}

    def _make_searcher(self, past: Sequence[TrialRecord]) -> Any:
        """Return a searcher that goes on where past trials end, see `setup`.

        It is that of the first session, if this suggests the past and the interrupted trials again
        once it is told their rewards, as after a search with one worker: the next rates are then
        those of an undisturbed search. Another one begins with these trials.
        """
        ended = [trial.rates for trial in self.ended]
        running = [trial.rates for trial in past if trial.status == "running"]
        interrupted = dict.fromkeys(tuple(rates) for rates in running if rates not in ended)
        rates = [*ended, *map(list, interrupted)]

        def make(first: list[list[float]], sessions: int) -> Any:
            seed = stream_seed("search", self.settings.seed, sessions) % 2**32
            points = [self.space.point(each) for each in first]
            return make_searcher(points, seed, self.settings.searcher, 20)

        replay = make([self.space.flat], 0)
        replay.set_search_properties("reward", "max", domains(self.space.sweep))
        points = [*tell(replay, self._rewards)]
        points += [replay.suggest(str(number)) for number in range(len(interrupted))]
        is_equal = np.allclose(
            [self.space.rates(point) for point in points], rates, rtol=1e-9, atol=0.0
        )
        return make([self.space.flat], 0) if is_equal else make(rates, len(past))

    def _make_scheduler(self) -> Any:
        """Return ASHA, or a scheduler that stops no trial.

        ASHA stops trials on D_s only: what a trial scores on D_o before the shift is no part of
        the reward, and the searcher gets p_o + p_s of every trial.
        """
        settings, epochs = self.settings, self.epochs[1]
        if settings.scheduler == "none" or settings.grace >= epochs:
            return FIFOScheduler()
        return AsyncHyperBandScheduler(
            time_attr=SHIFT_EPOCHS,
            max_t=epochs,
            grace_period=settings.grace,
            reduction_factor=settings.reduction,
        )

    def setup(self, **info: Any) -> None:
        """Replay past trials once searcher and scheduler have the search space.

        Ray Tune itself restores an experiment only from its own pickles and with the original
        number of trials.
        """
        tell(self.searcher, self._rewards)
        if isinstance(self.scheduler, AsyncHyperBandScheduler):
            for trial in self.ended:
                stub = SimpleNamespace(trial_id=f"past{trial.number}")
                self.scheduler.on_trial_add(None, stub)
                for epoch in trial.epochs:
                    result = {SHIFT_EPOCHS: epoch.stage * epoch.epoch, "reward": epoch.reward}
                    self.scheduler.on_trial_result(None, stub, result)

    def on_trial_start(self, trial: Any, trials: list[Any], **info: Any) -> None:
        """Start a record; trials proposed together may start in any order."""
        self._start[trial.trial_id] = time.monotonic()
        number = self._first + trials.index(trial)
        rates = self.space.rates(trial.config)
        self._update(trial, TrialRecord(number=number, rates=rates, started=now()))

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
            changes |= {"status": "complete", "finished": now()}
        elif result.get("done"):
            when = f"after epoch {epoch.epoch} of {self.epochs[1]} on D_s"
            reason = f"reward {epoch.reward:.4f} {when} is not among the best of earlier trials"
            changes |= {"status": "stopped", "reason": reason, "finished": now()}
        self._succeeded = self._succeeded or "status" in changes
        self._update(trial, record.model_copy(update=changes))

    def on_trial_error(self, trial: Any, **info: Any) -> None:
        """Record that a worker died; exceptions in a trial are reported as results instead."""
        if trial.trial_id not in self._start:  # it died before it began
            self.on_trial_start(trial=trial, **info)
        self._fail(trial, DIED, time.monotonic() - self._start[trial.trial_id])

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
        changes = {"status": "failed", "reason": reason, "seconds": seconds, "finished": now()}
        self._update(trial, self._records[trial.trial_id].model_copy(update=changes))

    def _update(self, trial: Any, record: TrialRecord) -> None:
        self._records[trial.trial_id] = record
        self._write(record)


def run_trials(
    objective: Callable[[list[float], Any, Callable[[Mapping[str, Any]], None]], None],
    setup: Any,
    trials: int,
    recorder: TrialRecorder,
    resources: CellResources,
) -> None:
    """Run `trials` trials on the connected Ray; end early if the time is over or all fail.

    Interrupted trials of earlier sessions come first; a new search starts with the flat rate.
    Workers call ``objective(rates, setup, report)``; `setup` is sent to each once.
    """
    from autogluon.core.hpo import ray_hpo  # has no version for Python 3.14, where `tune` works

    adapter = SimpleNamespace(
        get_supported_searchers=lambda: None,
        get_supported_schedulers=lambda: None,
        get_resources_per_trial=lambda **_: {"cpu": resources.threads, "gpu": resources.gpus},
        trainable_args_update_method=lambda arguments: arguments,
    )
    with tempfile.TemporaryDirectory(prefix="clbench-search-") as folder:
        try:
            ray_hpo.run(
                _run_in_worker,
                {"objective": objective, "setup": setup, "space": recorder.space},
                domains(recorder.space.sweep),
                {
                    "num_trials": trials,
                    "searcher": recorder.searcher,
                    "scheduler": recorder.scheduler,
                },
                metric="reward",
                mode="max",
                save_dir=str(Path(folder) / "trials"),
                ray_tune_adapter=adapter,
                verbose=0,
                tune_config_kwargs={
                    "max_concurrent_trials": recorder.workers,
                    "reuse_actors": True,
                },
                run_config_kwargs={"callbacks": [recorder], "stop": recorder},
            )
        finally:
            recorder.close()


def _run_in_worker(config: dict[str, Any], objective: Any, setup: Any, space: SearchSpace) -> None:
    def report(result: Mapping[str, Any]) -> None:
        shift_epochs = result.get("stage", 0) * result.get("stage_epoch", 0)
        tune.report({**result, SHIFT_EPOCHS: shift_epochs})

    objective(space.rates(config), setup, report)
