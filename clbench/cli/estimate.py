"""How long a plan is likely to take."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from clbench.cli.console import duration
from clbench.results.cell import CellResult

if TYPE_CHECKING:
    from clbench.suite.plan import Cell, Plan
    from clbench.tasks.task import Rows

CPU_SPEED = 1e11
"""Floating-point operations a second that a training loop reaches on a few CPU cores."""

GPU_SPEED = 3e13
"""The same on one data-centre GPU."""

CELL_SECONDS = 2.0
"""Loading, scoring and writing, which a cell takes besides training."""

TOKENS_A_WORD = 1.4
"""Word pieces in an English word, with some room for the specials."""

SAMPLE = 2000
"""Rows whose length is looked at."""


GUESS = 3.0
"""How far off, as a factor, an estimate may well be that is not made of measured times."""


@dataclass(frozen=True)
class Estimate:
    """Seconds, in words what they were made of, and by what factor they may be wrong."""

    seconds: float
    basis: str
    factor: float = 1.0

    def __str__(self) -> str:
        if self.factor == 1.0:
            return f"about {duration(self.seconds)} ({self.basis})"
        low, high = duration(self.seconds / self.factor), duration(self.seconds * self.factor)
        return f"somewhere between {low} and {high} ({self.basis})"


def from_finished(pending: Sequence[Cell], done: Iterable[CellResult]) -> Estimate | None:
    """From the times of cells that were run before; None if there are none.

    A cell is taken for as long as the mean of the finished ones of its scenario and
    baseline, else of its scenario, else of all.
    """
    times: dict[tuple[str, ...], list[float]] = {}
    for cell in done:
        if cell.status != "ok" or cell.reference_of is not None:
            continue
        seconds = sum(stage.train_seconds + stage.eval_seconds for stage in cell.stages)
        for key in ((cell.scenario, cell.baseline), (cell.scenario,), ()):
            times.setdefault(key, []).append(seconds)
    if () not in times:
        return None
    total = 0.0
    for wanted in pending:
        keys = ((wanted.scenario.name, wanted.baseline.name), (wanted.scenario.name,), ())
        nearest = next(times[key] for key in keys if key in times)
        # A reference trains one task of a scenario that has two or more.
        total += fmean(nearest) * (0.5 if wanted.reference_of is not None else 1.0)
    number = len(times[()])
    cells = "the one cell" if number == 1 else f"{number} cells"
    return Estimate(total, f"from the times of {cells} finished before")


def from_sizes(plan: Plan, pending: Sequence[Cell]) -> Estimate:
    """From tokens × parameters, with a guess at the machine's speed.

    Six operations for each parameter and token that is trained on (two forward, four
    backward), embeddings not counted. Good to a factor of `GUESS`, mostly.

    Raises
    ------
    ClbenchError
        If the tasks or the model cannot be found: so would the run.
    """
    from clbench.tasks.registry import load_task

    own = plan.suite.file.task
    sizes: dict[str, tuple[int, float]] = {}
    operations = 0.0
    parameters: dict[str, int] = {}
    for cell in pending:
        protocol = cell.protocol
        if protocol.model not in parameters:
            parameters[protocol.model] = count_parameters(protocol.model, protocol.revision)
        names = cell.scenario.task_names
        if cell.reference_of is not None and cell.reference_of < len(names):
            names = (names[cell.reference_of],)
        for name in names:
            if name not in sizes:
                task = load_task(name, data=plan.data, base=plan.base, own=own)
                task = task.limited(protocol.limit, protocol.data_seed)
                sizes[name] = (len(task.train), mean_tokens(task.train, protocol.max_length))
            rows, tokens = sizes[name]
            steps, _ = protocol.stage_length(name, rows)
            trained = steps * min(protocol.batch_of(name), rows)
            operations += 6.0 * parameters[protocol.model] * trained * tokens
    gpu = plan.device not in ("auto", "cpu")
    speed = GPU_SPEED if gpu else CPU_SPEED
    place = "one GPU" if gpu else "a few CPU cores"
    return Estimate(
        operations / speed + CELL_SECONDS * len(pending),
        f"a guess from tokens × parameters for {place}; once a cell is finished, its time is used",
        GUESS,
    )


def mean_tokens(rows: Rows, max_length: int) -> float:
    """Tokens of a row, guessed from its words; at most `max_length`."""
    firsts = rows.first[:SAMPLE]
    seconds = rows.second[:SAMPLE] if rows.second is not None else [""] * len(firsts)
    counts = [
        min((len(a.split()) + len(b.split())) * TOKENS_A_WORD + 2, max_length)
        for a, b in zip(firsts, seconds, strict=True)
    ]
    return fmean(counts) if counts else 0.0


def count_parameters(
    name: str, revision: str | None, *, locate: Callable[[str, str | None], Path] | None = None
) -> int:
    """Parameters of a checkpoint besides its embedding tables, read from the file's header."""
    from clbench.models.locate import local_folder

    folder = (locate or local_folder)(name, revision)
    return sum(
        _size(shape)
        for path in sorted(folder.glob("*.safetensors"))
        for tensor, shape in _header(path).items()
        if "embed" not in tensor.lower()
    )


def _header(path: Path) -> Mapping[str, list[int]]:
    """Shapes of a safetensors file's tensors, without reading the tensors."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


def _size(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
