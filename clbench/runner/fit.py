"""Whether the cells of a plan fit into memory, by shapes, and the smallest change if not."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from clbench.core.errors import explain
from clbench.core.shapes import on_shapes
from clbench.core.user_code import own_state
from clbench.measure.rows import PreparedScenario
from clbench.runner.cell_runner import CellRunner
from clbench.runner.cell_stages import ComputeSettings
from clbench.runner.resources import Resources, machine_mb
from clbench.suite.baselines import Baseline
from clbench.suite.plan import Cell
from clbench.training.device import Precision
from clbench.training.memory import LiveBytes

SPARE, PROCESS_MB = 1.1, 700.0
"""Factor on the tensors, for workspaces of kernels and gaps in an allocator; and Python with its
libraries, or the context of CUDA, roughly."""
SECONDS = 10.0
"""Processor time after which no further baseline is estimated."""
PLAIN: dict[str, Any] = {
    "curve_points": 0,
    "capability_tasks": [],
    "lm_eval": [],
    **dict.fromkeys(("capability_rows", "kl_rows", "probe_rows", "relearn_rows")),
}
"""Settings without the measures that the estimate leaves out."""
ADAPTERS = Baseline("lora", "lora")


@dataclass(frozen=True)
class CellMemory:
    """Memory that a cell needs, in megabytes (1e6 bytes)."""

    training: float  # as `training_memory_mb` of a cell
    peak: float  # of all tensors from the cell's start to its end


class _Rehearsal(CellRunner):
    """A cell that is run on shapes."""

    def memory(self) -> CellMemory:
        """Return the memory that the cell needs, from shapes: nothing is loaded or trained."""
        with on_shapes(), LiveBytes() as live:
            self._load()
            for position in range(len(self._stages)):
                stage = self._stage(position)
                record = self._train(stage, position)
                self.method.after_stage(stage)
            writer = self.scenario.writer
            for data in self.scenario.scored[: stage.index + 1]:
                with self.method.scoring(data.task):
                    if writer is None or not writer.writes(data):
                        self.context.outputs(data)
        return CellMemory(record.memory_mb or 0.0, live.peak / 1e6)


@dataclass(frozen=True)
class Need:
    """Memory that the cells of a baseline need, or why it is not known."""

    cell: Cell
    prepared: PreparedScenario
    memory: CellMemory | None
    reason: str = ""


def total_mb(tensors: float) -> float:
    """Return the megabytes of a process whose tensors take `tensors`."""
    return tensors * SPARE + PROCESS_MB


def needs(
    cells: Iterable[tuple[Cell, PreparedScenario]], precision: Precision, seconds: float = SECONDS
) -> list[Need]:
    """Return what each baseline needs in the scenario with its largest batch.

    The first one is always estimated; those that would begin after `seconds` are left out.
    """
    largest: dict[str, tuple[Cell, PreparedScenario]] = {}
    for each in cells:
        name = each[0].baseline.name
        largest[name] = max(largest.get(name, each), each, key=_tokens)
    found: list[Need] = []
    end = time.process_time() + seconds
    for each in largest.values():
        if found and time.process_time() > end:
            reason = f"not estimated after {seconds:.0f} s; give fewer methods"
            found.append(Need(*each, None, reason))
            continue
        try:
            found.append(Need(*each, cell_memory(*each, precision)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a method that needs numbers, or of a plug-in's
            found.append(Need(*each, None, f"cannot be estimated: {explain(error)}"))
    return found


@own_state()
def cell_memory(cell: Cell, prepared: PreparedScenario, precision: Precision) -> CellMemory:
    """Return the memory that a cell needs, from shapes alone."""
    cell = replace(cell, protocol=cell.protocol.model_copy(update=PLAIN), reference_of=None)
    prepared = replace(prepared, scorers=(), probed=(), capabilities=None, gold=())
    method = cell.baseline.build()
    compute = ComputeSettings(torch.device("cpu"), Precision(precision.name, "cpu"), {})
    return _Rehearsal(cell, prepared, method, compute).memory()


def room_mb(device: torch.device, resources: Resources) -> float | None:
    """Return the memory of this machine, or of a GPU, for one cell; None for those of a cluster."""
    if resources.address is not None:
        return None
    workers = resources.workers or 1
    if device.type != "cuda":
        return machine_mb() / workers
    share = 1.0 if resources.alone else resources.gpus
    share = share or 1.0 / math.ceil(workers / torch.cuda.device_count())
    return min(1.0, share) * torch.cuda.get_device_properties(device).total_memory / 1e6


def smallest_change(
    found: Sequence[Need], precision: Precision, room: float
) -> tuple[str, float] | None:
    """Return the smallest change after which the largest known need fits, and what it takes then.

    None if no change is enough. Changes that keep the scores, but for the units that dropout drops,
    come first: parts of batches one after another, and activations that are computed twice. Then
    weights in bf16, then adapters.
    """
    worst = max(found, key=lambda need: need.memory.peak if need.memory else 0.0)
    for changes, baseline in _changes(worst):
        protocol = worst.cell.protocol.model_copy(update=dict(changes))
        cell = replace(worst.cell, protocol=protocol, baseline=baseline)
        try:
            baseline.build().check_protocol(protocol)
            peak = cell_memory(cell, worst.prepared, precision).peak
        except Exception:  # the method cannot take it, or the package of adapters is missing
            continue
        if total_mb(peak) <= room:
            words = {True: "true", "bf16": '"bf16"'}
            parts = [f"{key} = {words.get(value, value)}" for key, value in changes.items()]
            parts += [] if baseline is worst.cell.baseline else [f"the method {baseline.name}"]
            return " and ".join(parts), peak
    return None


def _changes(need: Need) -> Iterator[tuple[Mapping[str, Any], Baseline]]:
    """Yield changes of the protocol, and the method, from the smallest on."""
    protocol, own = need.cell.protocol, need.cell.baseline
    rows = max(protocol.batch_of(task.name) for task in need.prepared.train)
    counts = [2**k for k in range(1, rows.bit_length()) if 2**k > protocol.accumulation]
    yield from (({"accumulation": count}, own) for count in counts)
    most = {"accumulation": counts[-1]} if counts else {}
    if not protocol.is_language_model:
        yield most, ADAPTERS
        return
    twice, half = {"gradient_checkpointing": True}, {"weights": "bf16"}
    changes = (twice, twice | most, half, half | most, half | twice, half | twice | most)
    yield from ((each, own) for each in changes)
    yield from ((each, ADAPTERS) for each in ({}, *changes))


def _tokens(each: tuple[Cell, PreparedScenario]) -> int:
    """Return the most tokens in a batch, padding included, or somewhat more."""
    protocol, tasks = each[0].protocol, each[1].train
    return max(
        min(protocol.batch_of(t.name), len(t.rows)) * int(t.rows.lengths.max()) for t in tasks
    )
