"""One way of a method through the world, watched."""

from __future__ import annotations

import gc
import hashlib
import itertools
import statistics
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from clbench.conformance.candidate import Candidate
from clbench.conformance.toy_scenario import ToyScenario
from clbench.evaluation.cell_runner import CellRunner
from clbench.evaluation.listener import Listener
from clbench.evaluation.prepare import PreparedScenario
from clbench.evaluation.stage_cache import CachedStage, StageCache
from clbench.methods.base import Method
from clbench.suite.plan import Cell
from clbench.training.memory import LiveBytes, bytes_held
from clbench.training.stage import Context, Stage

Digests = dict[str, bytes]


@dataclass
class CheckRun:
    """What was seen of a cell.

    Attributes
    ----------
    weights
        Digests of the weights after each stage that was trained now, before the method
        consolidates, by the stage's number.
    final
        Those at the end, and of the outputs for each task.
    acts
        Whether the method says that it acts, stage by stage.
    step_seconds
        Median time of a training step of the last stage.
    other_seconds
        Time in `setup` and `after_stage`.
    held
        Bytes of tensors and arrays in the method's attributes after each stage.
    grown
        Bytes by which those grew from the middle of each stage to its last step.
    held_midway, held_late
        What they were there in the latest stage.
    model_bytes
        Bytes of the model's weights.
    peak, left
        Largest number of live bytes of tensors, and what was left in the end; None where it
        was not counted.
    stays
        What outlived the cell: ``the model``, ``a stage``.
    saved
        Digests of the recipes of the trained stages that were kept, in order.
    taken
        Number of stages that were taken from there.
    refused
        Why a stage could not be kept.
    """

    weights: dict[int, Digests] = field(default_factory=dict)
    final: Digests = field(default_factory=dict)
    acts: list[bool] = field(default_factory=list)
    step_seconds: float = 0.0
    other_seconds: float = 0.0
    held: list[int] = field(default_factory=list)
    model_bytes: int = 0
    peak: int | None = None
    left: int | None = None
    stays: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    taken: int = 0
    grown: list[int] = field(default_factory=list)
    held_midway: int = 0
    held_late: int = 0
    refused: list[str] = field(default_factory=list)


Between = Callable[[Method, Stage], None]


def travel(
    world: ToyScenario,
    subject: Candidate,
    *,
    scene: PreparedScenario | None = None,
    resume: str | None = None,
    count_bytes: bool = False,
    look: bool = False,
    between: Between | None = None,
) -> CheckRun:
    """Run the method through the world as a run would.

    Parameters
    ----------
    world, subject
        Where, and what.
    scene
        Other rows than the world's.
    resume
        Go on from this kept stage, an element of `Journey.saved`.
    count_bytes
        Count live bytes of tensors; takes longer.
    look
        Collect garbage in the end, so that `Journey.stays` says what really stays.
    between
        Called after each stage, when the method has consolidated.
    """
    seen = CheckRun()
    with ExitStack() as stack:
        live = stack.enter_context(LiveBytes()) if count_bytes else None
        references = _run(world, subject, scene or world.scene, resume, between, seen)
        if live is not None:
            gc.collect()
            seen.peak, seen.left = live.peak, live.now
        elif look:
            gc.collect()
    seen.stays = sorted({name for name, reference in references if reference() is not None})
    return seen


def _run(
    world: ToyScenario,
    subject: Candidate,
    scene: PreparedScenario,
    resume: str | None,
    between: Between | None,
    seen: CheckRun,
) -> list[tuple[str, weakref.ref[Any]]]:
    """Everything that must be gone when this returns; weak references to it."""
    references: list[tuple[str, weakref.ref[Any]]] = []
    method = subject.make(_watched(subject.kind, seen, references, between))
    seen.acts = [bool(method.acts_in(stage)) for stage in range(len(scene.train))]
    cache = _Kept(world.folder / "stages", resume)
    steps = _Steps()
    carrier = CellRunner(world.cell(subject), scene, method, world.numerics, cache, steps)
    carrier.run()
    context = carrier.context
    seen.final = {**digests(context.model), **_outputs(context, method, scene)}
    last = [moment for stage, moment in steps.times if stage == len(scene.train)]
    seconds = [after - before for before, after in itertools.pairwise(last)]
    seen.step_seconds = statistics.median(seconds) if seconds else 0.0
    seen.saved, seen.taken, seen.refused = cache.saved, cache.taken, cache.refused
    return references


def digests(model: nn.Module) -> Digests:
    """A digest of each weight."""
    return {name: _digest(value.detach().numpy()) for name, value in model.named_parameters()}


def differing(first: Digests, second: Digests) -> list[str]:
    """Names whose digests differ, or that only one of them has."""
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def _outputs(context: Context, method: Method, scene: PreparedScenario) -> Digests:
    found = {}
    for data in scene.scored:
        with method.scoring(data.task):
            found[f"outputs for {data.name}"] = _digest(context.outputs(data))
    return found


def _digest(values: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


def _watched(
    kind: type[Method],
    seen: CheckRun,
    references: list[tuple[str, weakref.ref[Any]]],
    between: Between | None,
) -> type[Method]:
    """A subclass that tells what its hooks are given; it keeps nothing itself."""

    class Watched(kind):  # type: ignore[valid-type, misc]
        def setup(self, context: Context) -> None:
            references.append(("the model", weakref.ref(context.model)))
            seen.model_bytes = sum(p.numel() * 4 for p in context.model.parameters())
            began = time.perf_counter()
            super().setup(context)
            seen.other_seconds += time.perf_counter() - began

        def after_step(self, stage: Stage) -> None:
            super().after_step(stage)
            done = stage.done_before + stage.step + 1
            if done == stage.total_steps // 2:
                seen.held_midway = bytes_held(self)
            elif done == stage.total_steps:
                seen.held_late = bytes_held(self)

        def after_stage(self, stage: Stage) -> None:
            references.append(("a stage", weakref.ref(stage)))
            seen.weights[stage.index] = digests(stage.model)
            began = time.perf_counter()
            super().after_stage(stage)
            seen.other_seconds += time.perf_counter() - began
            seen.held.append(bytes_held(self))
            seen.grown.append(seen.held_late - seen.held_midway)
            if between is not None:
                between(self, stage)

    Watched.__name__, Watched.__qualname__ = kind.__name__, kind.__qualname__
    return Watched


class _Steps(Listener):
    """Remembers the stage, counted from 1, and the time of each training step."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        self.times.append((stage, time.perf_counter()))


class _Kept(StageCache):
    """Trained stages that outlive their cell, and of which one at most is given out."""

    def __init__(self, folder: Path, give: str | None) -> None:
        super().__init__(folder)
        self.saved: list[str] = []
        self.refused: list[str] = []
        self.taken = 0
        self._give = give

    def load(self, digest: str, device: Any) -> CachedStage | None:
        if digest != self._give:
            return None
        entry = super().load(digest, device)
        self.taken += entry is not None
        return entry

    def save(self, digest: str, entry: CachedStage) -> str | None:
        refused = super().save(digest, entry)
        if refused is None:
            self.saved.append(digest)
        else:
            self.refused.append(refused)
        return refused

    def drop(self, digest: str) -> None:
        pass
