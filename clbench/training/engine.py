"""The training loop, one for all methods; it knows a method only by its hooks."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from clbench.core.errors import NonFiniteLossError, PluginError, count
from clbench.core.shapes import only_shapes
from clbench.training.batches import (
    Batch,
    PlannedBatch,
    TaskData,
    largest_batches,
    padded_size,
    plan,
)
from clbench.training.device import return_old_memory
from clbench.training.hook_values import (
    checked_groups,
    checked_loss,
    checked_optimizer,
    checked_penalty,
)
from clbench.training.memory import StepMemory
from clbench.training.method import Method
from clbench.training.protocol import StageRecord
from clbench.training.stage import Stage

Progress = Callable[[int, int], None]
Points = Callable[[int, Mapping[str, float]], None]

ENGINE_CURVES = ("step", "loss", "lr", "scores")
"""Curves of every stage; all others belong to the method."""
CHECK_EVERY = 20
"""Steps between checks of the loss on accelerators, where each check waits for the device."""
SCORING_SHARE = 0.1
"""Largest share of a stage's training work that scoring for curves may take."""
STEP_WORK = 3.0
"""Work of training on a token, in forward passes: the backward pass costs two."""


@dataclass(frozen=True)
class Probe:
    """Measurements at the points of a stage's curves."""

    score: Callable[[], Mapping[str, float]]  # returns the scores of all tasks so far, by name
    tokens: int  # read by one call of `score`; decides how many points are scored
    record: Callable[[], None] = lambda: None  # called at every point; should cost little


def train_stage(
    stage: Stage,
    method: Method,
    *,
    probe: Probe | None = None,
    progress: Progress | None = None,
    points: Points | None = None,
    after_epoch: Callable[[], None] | None = None,
) -> StageRecord:
    """Train on one task with the hooks of `method`, all but `after_stage`; return the record.

    Parameters
    ----------
    stage, method
        Set up for the cell; the stage's counters are set here.
    probe
        Measures before the first step and at the protocol's curve points; see `scored_steps`.
    progress
        Called with (steps done, total steps) after each step.
    points
        Called with (step, values) at each point of the curves: ``loss``, ``lr``, and
        ``score of TASK`` for each task that was scored.
    after_epoch
        Called after each pass over the rows and at the end of the stage; it must not change
        weights.

    Raises
    ------
    NonFiniteLossError
        If the loss or the penalty is not finite.
    PluginError
        If a hook returns something unusable.
    """
    devices = [stage.device] if stage.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        started = time.perf_counter()
        method.before_stage(stage)
        data = method.training_data(stage)
        seconds_before = time.perf_counter() - started
        lengths = _phase_lengths(stage, method, data)
        record = StageRecord(
            task=stage.name,
            rows=sum(len(source.rows) for source in data),
            steps=0,
            epochs=round(stage.total_steps / stage.epoch_steps, 4),
            examples=0,
            tokens=0,
            train_seconds=0.0,
        )
        curve = _Curve(stage, record, data, probe, points)
        curve.measure()
        batches, measured = _planned(stage, data)
        memory = StepMemory(stage.device)
        untimed = measured if len(measured) < len(batches) else ()
        timed_tokens = 0
        for stage.phase, steps in enumerate(lengths):
            optimizer, schedule = _begin_phase(stage, method, steps)
            while stage.step < stage.steps:
                if only_shapes() and 0 < stage.step < stage.steps - 1:
                    stage.step += 1
                    record.steps += 1
                    continue
                started = time.perf_counter()
                source, positions = batches[record.steps]
                batch = source.batch(positions, stage.device)
                measure = record.steps in measured
                with memory.measure(stage.model, method, optimizer) if measure else nullcontext():
                    _step(stage, method, batch, optimizer, schedule, curve)
                stage.step += 1
                record.steps += 1
                record.examples += len(batch)
                record.tokens += batch.tokens
                wait = curve.due or measure or record.steps in measured
                if wait and stage.device.type == "cuda":
                    torch.cuda.synchronize(stage.device)
                if record.steps - 1 not in untimed:
                    record.train_seconds += time.perf_counter() - started
                    timed_tokens += batch.tokens
                if curve.due:
                    curve.add_point()
                if progress is not None:
                    progress(record.steps, stage.total_steps)
                last = record.steps == stage.total_steps
                if after_epoch is not None and (last or record.steps % stage.epoch_steps == 0):
                    started = time.perf_counter()
                    after_epoch()
                    record.eval_seconds += time.perf_counter() - started
                    _training_mode(stage)
        record.train_seconds *= record.tokens / max(1, timed_tokens)
        record.train_seconds += seconds_before
        record.memory_mb = memory.peak / 1e6 or None
        record.curves.update(stage.log)
        return record


def scored_steps(grid: Sequence[int], affordable: int) -> list[int]:
    """Return the steps of `grid` to score: at most `affordable` of them, evenly spread.

    They include the first and the last step; there are none if `affordable` is below 2.
    """
    count = min(len(grid), affordable)
    if count < 2:
        return []
    return [grid[round(i * (len(grid) - 1) / (count - 1))] for i in range(count)]


def _phase_lengths(stage: Stage, method: Method, data: Sequence[TaskData]) -> list[int]:
    """Set the heads and the numbers of steps of a stage; return the steps of each phase."""
    stage.heads = frozenset(source.head for source in data)
    rows, protocol = sum(len(source.rows) for source in data), stage.protocol
    # No batch holds rows of two sources.
    stage.epoch_steps = sum(protocol.stage_length(s.name, len(s.rows))[1] for s in data)
    own_steps = protocol.stage_steps(stage.name, stage.epoch_steps)
    lengths = [own_steps if p.steps is None else p.steps for p in method.phases(stage)]
    stage.total_steps = sum(lengths)
    if not rows or stage.total_steps <= 0:
        raise PluginError(
            f"training_data returns {count(rows, 'row')} and phases "
            f"{count(stage.total_steps, 'step')}: a stage needs at least one of each."
        )
    return lengths


def _planned(stage: Stage, data: Sequence[TaskData]) -> tuple[list[PlannedBatch], frozenset[int]]:
    """Return the batches of a stage, and the numbers of those whose memory is measured."""
    sizes = [stage.protocol.batch_of(source.name) for source in data]
    batches = list(plan(data, sizes, stage.total_steps, stage.stream("order")))
    # One of them is near the end, as some methods act late or train more and more weights.
    measured = largest_batches(batches)
    if only_shapes():
        batches = [max((batches[i] for i in measured), key=padded_size)] * len(batches)
        measured = frozenset([len(batches) - 1])
    return batches, measured


def _begin_phase(stage: Stage, method: Method, steps: int) -> tuple[Optimizer, LRScheduler | None]:
    """Set the counters of a phase of `steps` steps; return its optimizer and schedule."""
    stage.done_before += stage.step
    stage.steps, stage.step = steps, 0
    # Weights that no optimizer holds, such as another task's head, would keep gradients.
    stage.model.zero_grad(set_to_none=True)
    method.before_phase(stage)
    groups = checked_groups(method.parameter_groups(stage), stage.model)
    optimizer = checked_optimizer(method.optimizer(stage, groups), stage.model)
    schedule = method.schedule(stage, optimizer)
    _training_mode(stage)
    return optimizer, schedule


def _step(
    stage: Stage,
    method: Method,
    batch: Batch,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
    curve: "_Curve",
) -> None:
    method.before_step(stage)
    stage.restart_dropout()
    parts = batch.parts(stage.protocol.accumulation)
    stage.parts = len(parts)
    # The second part finds the gradients of the first; others need no more memory.
    for number, (part, share) in enumerate(parts[:2] if only_shapes() else parts):
        stage.part, stage.part_share, stage.part_rows = number, share, len(batch) * share
        loss = checked_loss(method.loss(stage, part))
        loss = loss if share == 1.0 else loss * share
        # The penalty does not depend on the rows.
        penalty = None if number else checked_penalty(method.penalty(stage))
        curve.add_loss(loss, penalty, new_step=number == 0)
        total = loss if penalty is None else loss + penalty
        total.backward()  # type: ignore[no-untyped-call]
    method.edit_gradients(stage)
    if stage.protocol.clip_norm is not None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        clip_gradients(parameters, stage.protocol.clip_norm)
    curve.rate = float(optimizer.param_groups[0]["lr"])
    optimizer.step()
    if schedule is not None:
        schedule.step()
    optimizer.zero_grad(set_to_none=True)
    return_old_memory()
    method.after_step(stage)


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> None:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    if all(g.device.type == "cpu" and g.dtype == torch.float32 for g in gradients):
        flat = [gradient.reshape(-1) for gradient in gradients]
        norm = torch.stack([torch.dot(g, g) for g in flat]).sum().sqrt()  # twice as fast
        if float(norm) <= max_norm:
            return  # multiplying by 1 would take time
    else:
        norm = nn.utils.get_total_norm(gradients)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)


class _Curve:
    """The curves of a stage: loss, rate, and the scores of all tasks so far."""

    def __init__(
        self,
        stage: Stage,
        record: StageRecord,
        data: Sequence[TaskData],
        probe: Probe | None,
        points: Points | None,
    ) -> None:
        self.rate = 0.0
        self._stage, self._record, self._probe, self._points = stage, record, probe, points
        self._loss = torch.zeros((), device=stage.device)
        self._penalty = torch.zeros((), device=stage.device)
        self._count = 0
        steps = stage.total_steps
        count = min(stage.protocol.curve_points, steps)
        grid = sorted({-(-steps * i // count) for i in range(count + 1)}) if count else []
        self._grid = set(grid)
        self._scored: set[int] = set()
        if probe is not None and grid:
            # Counted over all rows, not the planned batches: every seed gets the same points.
            tokens = sum(int(source.rows.lengths.sum()) for source in data)
            work = STEP_WORK * tokens * steps / stage.epoch_steps
            self._scored = set(scored_steps(grid, int(SCORING_SHARE * work / probe.tokens)))
            if len(self._scored) < len(grid):
                stage.note(
                    f"stage {stage.index} ({stage.name}): scored at {len(self._scored)} of "
                    f"{len(grid)} curve points, because scoring for curves may take at most "
                    f"{SCORING_SHARE:.0%} of the training work."
                )
        record.curves.update({"step": [], "loss": [], "lr": [], "scores": {}})

    @property
    def due(self) -> bool:
        """Whether the step just done is a point of the curves."""
        return self._record.steps in self._grid or self._record.steps == self._stage.total_steps

    def add_loss(self, loss: Tensor, penalty: Tensor | None, *, new_step: bool = True) -> None:
        """Add to the means of the next point; raise an error if they are not finite."""
        self._loss += loss.detach()
        if penalty is not None:
            self._penalty += penalty.detach()
        self._count += new_step
        if self._stage.device.type == "cpu" or self._count % CHECK_EVERY == 0:
            self._check_finite(self._record.steps + 1)

    def add_point(self) -> None:
        """Add the mean loss since the last point, the rate and, if planned, the scores."""
        curves = self._record.curves
        curves["step"].append(self._record.steps)
        curves["loss"].append(self._check_finite(self._record.steps) / max(1, self._count))
        curves["lr"].append(self.rate)
        self._loss.zero_()
        self._penalty.zero_()
        self._count = 0
        scores = {f"score of {task}": score for task, score in self.measure().items()}
        if self._points is not None:
            loss = curves["loss"][-1]
            self._points(self._record.steps, {"loss": loss, "lr": self.rate, **scores})

    def _check_finite(self, step: int) -> float:
        """Return the sum of losses since the last point; raise an error at `step` if not finite."""
        for name, value in (("loss", float(self._loss)), ("penalty", float(self._penalty))):
            if not math.isfinite(value):
                stage = self._stage
                raise NonFiniteLossError(
                    f"stage {stage.index} ({stage.name}): the {name} was no longer a finite number "
                    f"at step {step} of {stage.total_steps}. Lower lr, set clip_norm, or train in "
                    "float32."
                )
        return float(self._loss)

    def measure(self) -> Mapping[str, float]:
        """Score the current step if planned; return the scores and add them to the curves."""
        step = self._record.steps
        if self._probe is None or step not in self._grid:
            return {}
        started = time.perf_counter()
        scores: Mapping[str, float] = {}
        if step in self._scored:
            scores = self._probe.score()
            _training_mode(self._stage)
        for task, score in scores.items():
            self._record.curves["scores"].setdefault(task, []).append([step, score])
        self._probe.record()
        self._record.eval_seconds += time.perf_counter() - started
        return scores


def _training_mode(stage: Stage) -> None:
    """Turn dropout on, except in a backbone that nothing trains, where it would only be noise."""
    stage.model.train()
    if not any(p.requires_grad for p in stage.model.backbone.parameters()):
        stage.model.backbone.eval()
