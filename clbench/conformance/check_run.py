"""Train a candidate on the toy scenario by the code of a real run, and observe it."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from clbench.conformance.toy_scenario import COMPUTE, ToyScenario
from clbench.core.errors import PluginError
from clbench.core.user_code import RANDOM, GlobalState
from clbench.methods.base import METHODS, Method
from clbench.runner.cell_runner import CellRunner
from clbench.runner.listener import Listener
from clbench.runner.stage_cache import CachedStage, StageCache
from clbench.suite.baselines import Baseline, read_baseline
from clbench.suite.plan import Cell
from clbench.training.batches import TaskData
from clbench.training.memory import LiveBytes, bytes_held
from clbench.training.stage import Context, Stage

Hashes = dict[str, int]
AfterStage = Callable[[Method, Stage], None]
References = list[tuple[str, "weakref.ref[Any]"]]


@dataclass(frozen=True)
class Candidate:
    """The method under check: its class, and a baseline with its settings."""

    baseline: Baseline
    method: type[Method]

    @classmethod
    def of(
        cls, method: str | Baseline | type[Method], settings: Mapping[str, Any] | None = None
    ) -> Candidate:
        """Return the candidate for a method; see `clbench.conformance.check`."""
        if isinstance(method, type):
            if not issubclass(method, Method):
                raise PluginError(f"{method.__qualname__} is not a subclass of clbench.Method.")
            name = method.name or method.__name__
            candidate = cls(Baseline(name, name), method)
        else:
            baseline = method if isinstance(method, Baseline) else read_baseline(method)
            candidate = cls(baseline, METHODS.get(baseline.method))
        if settings:
            merged = {**candidate.baseline.settings, **settings}
            candidate = replace(candidate, baseline=replace(candidate.baseline, settings=merged))
            candidate.make()  # a wrong setting is the caller's error, not a failed check
        return candidate

    def make(self) -> Method:
        """Return a new instance of the method."""
        return self.method(**self.baseline.settings)


@dataclass
class CheckRun:
    """Observations of one run; sizes in bytes."""

    # Of the weights after each trained stage, before the method consolidates.
    weights: dict[int, Hashes] = field(default_factory=dict)
    # Of the weights at the end and of the outputs for each task.
    final: Hashes = field(default_factory=dict)
    # Median training step of the last stage; time in `setup` and `after_stage`.
    step_seconds: float = 0.0
    hook_seconds: float = 0.0
    # Size of the method's attributes after each stage, and their growth in its second half.
    attributes: list[int] = field(default_factory=list)
    growth: list[int] = field(default_factory=list)
    model_bytes: int = 0
    # If bytes are counted: peak of live tensors, rest after the run, and objects that outlive it.
    peak: int = 0
    rest: int = 0
    leaks: list[str] = field(default_factory=list)
    # Global state that the run changed; random numbers are another check's.
    changed: list[str] = field(default_factory=list)
    # Recipe digests of the saved stages, and errors in saving them.
    digests: list[str] = field(default_factory=list)
    save_errors: list[str] = field(default_factory=list)


def run_candidate(
    toy: ToyScenario,
    candidate: Candidate,
    *,
    train: Sequence[TaskData] | None = None,
    resume: str | None = None,
    count_bytes: bool = False,
    after_stage: AfterStage | None = None,
) -> CheckRun:
    """Train a candidate on the toy scenario.

    Parameters
    ----------
    train
        Replaces the training rows of `toy`.
    resume
        Digest of the stage to resume from, one of `CheckRun.digests`.
    count_bytes
        Count live bytes of tensors and find leaks; takes longer.
    after_stage
        Called after the method's hook of the same name.
    """
    run, references = CheckRun(), References()
    if train is not None:
        toy = replace(toy, scenario=replace(toy.scenario, train=tuple(train)))
    method = _observe(candidate.method, run, references, after_stage)
    with LiveBytes() if count_bytes else nullcontext() as live:
        state = GlobalState(without=RANDOM)  # LiveBytes is one of torch's modes itself
        try:
            _train(run, toy, candidate, method, resume)
        finally:
            run.changed = state.restore()
        if live is not None:
            gc.collect()
            run.peak, run.rest = live.peak, live.current
            run.leaks = sorted({name for name, reference in references if reference() is not None})
    return run


def _train(
    run: CheckRun, toy: ToyScenario, candidate: Candidate, kind: type[Method], resume: str | None
) -> None:
    """Train and fill `run`, leaving no reference to the model, the method or a stage."""
    method, steps = kind(**candidate.baseline.settings), _StepTimes()
    method.check_protocol(toy.protocol)
    method.check_tasks(toy.scenario.scenario.tasks)
    cache = _ObservedCache(toy.folder / "stages", run, resume)
    runner = CellRunner(toy.cell(candidate.baseline), toy.scenario, method, COMPUTE, cache, steps)
    runner.run()
    context = runner.context
    run.final = hashes(context.model)
    for data in toy.scenario.scored:
        with method.scoring(data.task):
            run.final[f"outputs for {data.name}"] = hash(context.outputs(data).tobytes())
    last = [moment for stage, moment in steps.times if stage == len(toy.scenario.train)]
    run.step_seconds = statistics.median([b - a for a, b in itertools.pairwise(last)] or [0.0])


def hashes(model: nn.Module) -> Hashes:
    """Return a hash of each weight by name."""
    return {n: hash(value.detach().numpy().tobytes()) for n, value in model.named_parameters()}


def differences(first: Hashes, second: Hashes) -> list[str]:
    """Return the names whose hashes differ, or that only one of the two has."""
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def _observe(
    method: type[Method], run: CheckRun, references: References, notify: AfterStage | None
) -> type[Method]:
    """Return a subclass that records its hooks in `run` and keeps nothing itself."""
    middle = end = 0

    class Observed(method):  # type: ignore[valid-type, misc]
        def setup(self, context: Context) -> None:
            references.append(("the model", weakref.ref(context.model)))
            run.model_bytes = sum(p.numel() * 4 for p in context.model.parameters())
            started = time.perf_counter()
            super().setup(context)
            run.hook_seconds += time.perf_counter() - started

        def after_step(self, stage: Stage) -> None:
            nonlocal middle, end
            super().after_step(stage)
            steps = stage.done_before + stage.step + 1
            if steps == stage.total_steps // 2:
                middle = bytes_held(self)
            elif steps == stage.total_steps:
                end = bytes_held(self)

        def after_stage(self, stage: Stage) -> None:
            references.append(("a stage", weakref.ref(stage)))
            run.weights[stage.index] = hashes(stage.model)
            started = time.perf_counter()
            super().after_stage(stage)
            run.hook_seconds += time.perf_counter() - started
            run.attributes.append(bytes_held(self))
            run.growth.append(end - middle)
            if notify is not None:
                notify(self, stage)

    Observed.__name__, Observed.__qualname__ = method.__name__, method.__qualname__
    return Observed


class _StepTimes(Listener):
    """Records the stage, counted from 1, and the time of each training step."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        self.times.append((stage, time.perf_counter()))


class _ObservedCache(StageCache):
    """Saves all stages for later runs, and loads only the one to resume from."""

    def __init__(self, folder: Path, run: CheckRun, resume: str | None) -> None:
        super().__init__(folder)
        self._run, self._resume = run, resume

    def has(self, digest: str) -> bool:
        return digest == self._resume

    def load(self, digest: str, device: Any) -> CachedStage | None:
        return super().load(digest, device) if digest == self._resume else None

    def save(self, digest: str, stage: CachedStage, *, of_run: bool = False) -> str | None:
        error = super().save(digest, stage, of_run=of_run)
        if error is not None:
            self._run.save_errors.append(error)
        self._run.digests.append(digest)
        return error

    def drop(self, digest: str) -> None:
        """Keep the entry: later runs resume from it."""
