"""A session of checks of one method, and the runs of the method that the checks observe."""

import gc
import itertools
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import nn

from clbench.conformance import toys
from clbench.core.errors import SettingsError, explain
from clbench.core.user_code import RANDOM, GlobalState
from clbench.methods.base import METHODS, Method
from clbench.runner.cell_runner import CellRunner
from clbench.runner.run_state import Listener
from clbench.runner.stage_cache import CachedStage, StageCache
from clbench.suite.baselines import Baseline, read_baseline
from clbench.suite.plan import Cell
from clbench.suite.sweeps import check_sweep
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.memory import LiveBytes, bytes_held
from clbench.training.stage import Stage

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
    ) -> Self:
        """Return the candidate for a method; see `clbench.conformance.check`."""
        if isinstance(method, type):
            name = method.name or method.__name__
            candidate = cls(Baseline(name, name), method)
        else:
            baseline = method if isinstance(method, Baseline) else read_baseline(method)
            check_sweep(baseline)
            candidate = cls(baseline, METHODS.get(baseline.method))
        settings = {**candidate.method.check_settings, **(settings or {})}
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
    toy: toys.ToyScenario,
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
        state = GlobalState(without=RANDOM)
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
    run: CheckRun,
    toy: toys.ToyScenario,
    candidate: Candidate,
    kind: type[Method],
    resume: str | None,
) -> None:
    """Train and fill `run`, leaving no reference to the model, the method or a stage."""
    method, steps = kind(**candidate.baseline.settings), _StepTimes()
    method.check_protocol(toy.protocol)
    method.check_tasks(toy.scenario.scenario.tasks)
    cache = _ObservedCache(toy.folder / "stages", run, resume)
    runner = CellRunner(
        toy.cell(candidate.baseline), toy.scenario, method, toys.COMPUTE, cache, steps
    )
    runner.run()
    context = runner.context
    run.final = hashes(context.model)
    for data in toy.scenario.scored:
        with method.scoring(data.task):
            run.final[f"outputs for {data.name}"] = hash(context.outputs(data).tobytes())
    seconds = [b - a for a, b in itertools.pairwise(steps.times)]
    run.step_seconds = statistics.median(seconds or [0.0])


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
        observed = method  # by which a cell knows vanilla

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
    """Records the time of each training step of the last stage."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        self.times += [time.perf_counter()] if stage == stages else []


class _ObservedCache(StageCache):
    """Saves all stages for later runs, and loads only the one to resume from."""

    def __init__(self, folder: Path, run: CheckRun, resume: str | None) -> None:
        super().__init__(folder)
        self._run, self._resume = run, resume

    def has(self, digest: str) -> bool:
        return digest == self._resume

    def load(self, digest: str, device: Any) -> CachedStage | None:
        return super().load(digest, device) if digest == self._resume else None

    def save(self, digest: str, stage: CachedStage, prefix: str = "") -> str | None:
        error = super().save(digest, stage, prefix)
        if error is not None:
            self._run.save_errors.append(error)
        self._run.digests.append(digest)
        return error

    def drop(self, digest: str) -> None:
        """Keep the entry: later runs resume from it."""


@dataclass(frozen=True)
class Row:
    """The result of one check: the finding, how to mend a failure, and measured numbers.

    The status ``skip`` means that an earlier failure prevents the check.
    """

    check: str
    status: Literal["pass", "fail", "skip"]
    reason: str
    hint: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


class FailedCheckError(Exception):
    """The reason why a check failed."""


class Check(NamedTuple):
    """A check, the name of the one that must pass before it, and what to do if it fails."""

    run: Callable[[Any], str]
    needs: str
    hint: str


CHECKS: dict[str, Check] = {}
"""The checks by name, in the order of their rows."""


def conformance_check(*, needs: str = "", hint: str = "") -> Callable[..., Any]:
    """Return a decorator that adds a check to `CHECKS`."""

    def add(run: Callable[[Any], str]) -> Callable[[Any], str]:
        CHECKS[run.__name__] = Check(run, needs, hint)
        return run

    return add


class Session:
    """A candidate under check, with the runs that several checks share."""

    def __init__(
        self, candidate: Candidate, model: str, folder: Path, architectures: Sequence[str]
    ) -> None:
        self.candidate, self.folder, self.architectures = candidate, folder, architectures
        head = candidate.method.head_kinds[0]
        if head != "classification":
            model = toys.checkpoint(toys.GENERATORS[0], writes=True)
        self.toy = toys.make_toy_scenario(model, folder, head=head)
        self.rows: dict[str, Row] = {}
        self.numbers: dict[str, float] = {}

    @cached_property
    def first(self) -> CheckRun:
        """A plain run of the candidate."""
        _ = self.vanilla  # trains first: what its imports change is not the candidate's doing
        return run_candidate(self.toy, self.candidate)

    @cached_property
    def second(self) -> CheckRun:
        """A second run, from another state of torch's own random numbers; live bytes counted."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return run_candidate(self.toy, self.candidate, count_bytes=True)

    @property
    def vanilla(self) -> CheckRun:
        """A run of vanilla at the candidate's flat rate, with live bytes counted."""
        return self.vanilla_on(self.toy)

    def vanilla_on(self, toy: toys.ToyScenario) -> CheckRun:
        """Return a run of vanilla at the candidate's flat rate on a scenario's model."""
        method, p = self.candidate.make(), toy.protocol
        return _vanilla(p.model, p.head, p.lr, p.epochs, method.lr, method.lr_multiple)

    def run(self, name: str) -> None:
        """Run a check, or skip it if the one that it needs did not pass."""
        check = CHECKS[name]
        before = self.rows.get(check.needs)
        if before is not None and before.status != "pass":
            reason = f"not checked, because {before.check} failed"
            reason = before.reason if before.status == "skip" else reason
            self.rows[name] = Row(name, "skip", reason)
            return
        self.numbers = {}
        try:
            self.rows[name] = Row(name, "pass", check.run(self), numbers=self.numbers)
        except FailedCheckError as error:
            self.rows[name] = Row(name, "fail", str(error), check.hint)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            hint = "Correct what the message says; `clbench run` would stop there too."
            if isinstance(error, SettingsError):
                hint = "Give settings that suit tasks of a few steps, with --set KEY=VALUE."
            self.rows[name] = Row(name, "fail", explain(error), hint)


@cache
def _vanilla(
    model: str, head: str, rate: float, epochs: int, lr: float | None, lr_multiple: float
) -> CheckRun:
    settings = {"lr": lr, "lr_multiple": lr_multiple}
    with toys.temporary_cache() as folder:
        toy = toys.make_toy_scenario(model, folder, head=head, lr=rate, epochs=epochs)
        return run_candidate(toy, Candidate.of("vanilla", settings), count_bytes=True)
