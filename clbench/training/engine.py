"""The loop: one for every method, which it knows by its hooks only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from clbench.errors import NonFiniteLossError
from clbench.methods.base import Method
from clbench.training import hook_checks
from clbench.training.batches import largest, plan
from clbench.training.memory import StepMemory
from clbench.training.stage import Stage

Probe = Callable[[], Mapping[str, float]]
Progress = Callable[[int, int], None]
Points = Callable[[int, Mapping[str, float]], None]

ENGINE_CURVES = ("step", "loss", "lr", "scores")
"""Curves of every stage; all others are the method's."""

LOOK_EVERY = 20
"""Steps between looks at the loss on accelerators, where each look waits for the device."""


@dataclass
class Trace:
    """What training on one task took and how it went.

    Attributes
    ----------
    rows, steps, examples, tokens
        Rows trained on (those of an earlier task included), optimizer steps, rows and real
        tokens that went through the model.
    train_seconds, probe_seconds
        Wall time of training, and of scoring along the way.
    memory_bytes
        Bytes of the tensors of a step at the peak, see `StepMemory`, in the steps with the largest
        batches, see `largest`; 0 where it is not known.
    curves
        ``step``, ``loss`` (mean since the last point), ``lr`` (of the first group, at the
        last step) as lists;
        ``scores``: a list of ``[step, score]`` a task; whatever the method recorded.
    """

    rows: int
    epoch_steps: int = 1
    steps: int = 0
    examples: int = 0
    tokens: int = 0
    train_seconds: float = 0.0
    probe_seconds: float = 0.0
    memory_bytes: int = 0
    curves: dict[str, Any] = field(default_factory=dict)


class _Meter:
    """Mean loss between looks, and a stop when loss or penalty is no longer a number."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._sum = torch.zeros((), device=stage.device)
        self._penalties = torch.zeros((), device=stage.device)
        self._count = 0
        self._every = 1 if stage.device.type == "cpu" else LOOK_EVERY

    def add(self, loss: Tensor, penalty: Tensor | None) -> None:
        self._sum += loss.detach()
        if penalty is not None:
            self._penalties += penalty.detach()
        self._count += 1
        if self._count % self._every == 0:
            self.look()

    def look(self) -> float:
        for name, value in (("loss", float(self._sum)), ("penalty", float(self._penalties))):
            if not math.isfinite(value):
                stage = self._stage
                raise NonFiniteLossError(
                    f"stage {stage.index} ({stage.name}): the {name} was no longer a finite "
                    f"number at step {stage.done_before + stage.step + 1} of "
                    f"{stage.total_steps}. Lower the learning rate, set clip_norm, or use "
                    "--precision float32."
                )
        return float(self._sum) / max(1, self._count)

    def reset(self) -> float:
        mean = self.look()
        self._sum.zero_()
        self._penalties.zero_()
        self._count = 0
        return mean


def train_stage(
    stage: Stage,
    method: Method,
    *,
    probe: Probe | None = None,
    progress: Progress | None = None,
    points: Points | None = None,
    after_epoch: Callable[[], None] | None = None,
) -> Trace:
    """Train on one task with the hooks of `method`, up to but without `after_stage`.

    Parameters
    ----------
    stage
        Model, rows and settings; its counters are set here.
    method
        Already set up for the cell.
    probe
        Scores all seen tasks; called at the protocol's curve points and once before.
    progress
        Told (steps done, steps in all).
    points
        Told (step, values) at each point of the curves: ``loss``, ``lr``, and ``score of TASK``
        for each task that was scored.
    after_epoch
        Called after each pass over the rows, and at the end of a last one that is not whole;
        it may score, but must not change weights.

    Raises
    ------
    NonFiniteLossError
        If the loss becomes infinite or not a number.
    PluginError
        If a hook returns something unusable.
    """
    devices = [stage.device] if stage.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        return _train(stage, method, probe, progress, points, after_epoch)


def _train(
    stage: Stage,
    method: Method,
    probe: Probe | None,
    progress: Progress | None,
    points: Points | None,
    after_epoch: Callable[[], None] | None,
) -> Trace:
    method.before_stage(stage)
    portions = hook_checks.portions(method.training_data(stage))
    stage.heads = frozenset(portion.head for portion in portions)
    rows = sum(len(portion.rows) for portion in portions)
    own_steps, stage.epoch_steps = stage.protocol.stage_length(stage.name, rows)
    phases = hook_checks.phases(method.phases(stage))
    lengths = [own_steps if phase.steps is None else phase.steps for phase in phases]
    stage.total_steps = sum(lengths)
    trace = Trace(rows, stage.epoch_steps)
    curve = _Curve(stage, trace, probe, points)
    curve.start()
    planned = (
        portions, stage.protocol.batch_of(stage.name), stage.total_steps, stage.stream("order"),
    )  # fmt: skip
    batches = plan(*planned)
    # One of them near the end, as some methods begin late or train more and more.
    memory, counted = StepMemory(stage.device), largest(*planned)
    for stage.phase, steps in enumerate(lengths):
        stage.done_before += stage.step
        stage.steps, stage.step = steps, 0
        # Weights that no optimizer holds, such as another task's head, keep what they are given.
        stage.model.zero_grad(set_to_none=True)
        method.before_phase(stage)
        groups = hook_checks.groups(method.parameter_groups(stage))
        optimizer = hook_checks.optimizer(method.optimizer(stage, groups))
        schedule = hook_checks.schedule(method.schedule(stage, optimizer))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        _training_mode(stage)
        while stage.step < stage.steps:
            started = time.perf_counter()
            portion, positions = next(batches)
            batch = portion.batch(positions, stage.device)
            counting = trace.steps in counted
            with memory.counted(stage.model, method, optimizer) if counting else nullcontext():
                _step(stage, method, batch, optimizer, schedule, parameters, curve)
            trace.train_seconds += time.perf_counter() - started
            stage.step += 1
            trace.steps += 1
            trace.examples += len(batch)
            trace.tokens += batch.tokens
            curve.after_step()
            if progress is not None:
                progress(trace.steps, stage.total_steps)
            ended = trace.steps == stage.total_steps or trace.steps % stage.epoch_steps == 0
            if ended and after_epoch is not None:
                started = time.perf_counter()
                after_epoch()
                trace.probe_seconds += time.perf_counter() - started
                _training_mode(stage)
    trace.memory_bytes = memory.peak
    trace.curves.update(stage.log)
    return trace


def _step(
    stage: Stage,
    method: Method,
    batch: Any,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
    parameters: list[nn.Parameter],
    curve: _Curve,
) -> None:
    method.before_step(stage)
    stage.restart_dropout()
    loss = hook_checks.loss(method.loss(stage, batch))
    penalty = hook_checks.penalty(method.penalty(stage))
    curve.meter.add(loss, penalty)
    total = loss if penalty is None else loss + penalty
    total.backward()  # type: ignore[no-untyped-call]
    method.edit_gradients(stage)
    if stage.protocol.clip_norm is not None:
        _clip(parameters, stage.protocol.clip_norm)
    curve.rate = float(optimizer.param_groups[0]["lr"])
    optimizer.step()
    if schedule is not None:
        schedule.step()
    optimizer.zero_grad(set_to_none=True)
    method.after_step(stage)


def _clip(parameters: list[nn.Parameter], largest: float) -> None:
    """Scale the gradients together to the norm `largest`, if theirs is larger."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    if all(g.device.type == "cpu" and g.dtype == torch.float32 for g in gradients):
        flat = [gradient.reshape(-1) for gradient in gradients]
        norm = torch.stack([torch.dot(g, g) for g in flat]).sum().sqrt()  # twice as quick
        if float(norm) <= largest:
            return  # a factor of 1 would touch every gradient for nothing
    else:
        norm = nn.utils.get_total_norm(gradients)
    nn.utils.clip_grads_with_norm_(parameters, largest, norm)


class _Curve:
    """Points of the curves of a stage: loss, rate and the scores on all seen tasks."""

    def __init__(
        self, stage: Stage, trace: Trace, probe: Probe | None, tell: Points | None
    ) -> None:
        self._tell = tell
        self.meter = _Meter(stage)
        self.rate = 0.0
        self._stage = stage
        self._trace = trace
        self._probe = probe
        points, steps = stage.protocol.curve_points, stage.total_steps
        self._at = {-(-steps * i // points) for i in range(1, points + 1)} if points else set()
        self._last = steps
        trace.curves.update({"step": [], "loss": [], "lr": [], "scores": {}})

    def start(self) -> None:
        if self._at:
            self._score(0)

    def after_step(self) -> None:
        step = self._trace.steps
        if step not in self._at and step != self._last:
            return
        if self._stage.device.type == "cuda":
            torch.cuda.synchronize(self._stage.device)
        curves = self._trace.curves
        curves["step"].append(step)
        curves["loss"].append(self.meter.reset())
        curves["lr"].append(self.rate)
        scores: Mapping[str, float] = {}
        if step in self._at:
            scores = self._score(step)
            _training_mode(self._stage)
        if self._tell is not None:
            told = {f"score of {task}": score for task, score in scores.items()}
            self._tell(step, {"loss": curves["loss"][-1], "lr": self.rate, **told})

    def _score(self, step: int) -> Mapping[str, float]:
        if self._probe is None:
            return {}
        started = time.perf_counter()
        scores = self._probe()
        for task, score in scores.items():
            self._trace.curves["scores"].setdefault(task, []).append([step, score])
        self._trace.probe_seconds += time.perf_counter() - started
        return scores


def _training_mode(stage: Stage) -> None:
    """Dropout on, except in a backbone that nothing trains: there it is only noise."""
    stage.model.train()
    if not any(p.requires_grad for p in stage.model.backbone.parameters()):
        stage.model.backbone.eval()
