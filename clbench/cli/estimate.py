"""The time that a plan will take."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from clbench.cli.console import duration
from clbench.core.errors import count
from clbench.models.folder import count_parameters, weight_files
from clbench.models.locate import local_folder
from clbench.results.cell import CellResult
from clbench.suite.plan import Cell, Plan
from clbench.suite.validation import stages_of
from clbench.tasks.registry import load_task
from clbench.tasks.task import Rows

CPU_SPEED = 1e11
"""Floating-point operations per second of a training loop on a few CPU cores."""
GPU_SPEED = 3e13
"""The same on one data-centre GPU."""
CELL_SECONDS = 2.0
"""Time of a cell besides training: loading, scoring and writing."""
TOKENS_PER_WORD = 1.4
"""Word pieces per English word, with some room for special tokens."""
SAMPLE = 2000
"""Rows of a task that the mean length is estimated from."""
GUESS = 3.0
"""Factor by which an estimate without measured times may be off."""


@dataclass(frozen=True)
class Estimate:
    """Seconds, their basis, and the factor by which they may be off.

    `scoring` is the time of scoring after each stage over that of training.
    """

    seconds: float
    basis: str
    factor: float = 1.0
    scoring: float = 0.0

    def __str__(self) -> str:
        if self.factor == 1.0:
            return f"about {duration(self.seconds)} ({self.basis})"
        low, high = duration(self.seconds / self.factor), duration(self.seconds * self.factor)
        return f"somewhere between {low} and {high} ({self.basis})"


def from_finished(pending: Sequence[Cell], results: Iterable[CellResult]) -> Estimate | None:
    """Estimate from the times of finished cells; None if there are none.

    The estimate of a cell is the mean of the finished cells of its scenario and baseline, else
    of its scenario, else of all.
    """
    times: dict[tuple[str, ...], list[float]] = {}
    training = scoring = 0.0
    for result in results:
        if result.is_scored:
            own = [stage for stage in result.stages if not stage.cached]
            training += sum(stage.train_seconds for stage in own)
            scoring += sum(stage.eval_seconds for stage in own)
            seconds = sum(stage.train_seconds + stage.eval_seconds for stage in own)
            for key in ((result.scenario, result.baseline), (result.scenario,), ()):
                times.setdefault(key, []).append(seconds)
    if not times:
        return None
    total = 0.0
    for cell in pending:
        keys = ((cell.scenario.name, cell.baseline.name), (cell.scenario.name,), ())
        nearest = next(times[key] for key in keys if key in times)
        # A reference trains one task of a scenario of two or more.
        total += fmean(nearest) * (0.5 if cell.reference_of is not None else 1.0)
    basis = f"from the times of {count(len(times[()]), 'finished cell')}"
    return Estimate(total, basis, scoring=scoring / training if training else 0.0)


def from_sizes(plan: Plan, pending: Sequence[Cell]) -> Estimate:
    """Estimate from tokens × parameters and a guess at the machine's speed.

    Six operations for each parameter and trained token (two forward, four backward) and two for
    each scored one, without the embeddings. A first stage that several cells share counts once.
    Usually right within a factor of `GUESS`.
    """
    from clbench.runner.cell_stages import stage_groups
    from clbench.training.device import resolve_device

    protocol, suite = plan.protocol, plan.suite
    sizes: dict[str, tuple[int, float, float]] = {}  # training rows, their length, scored tokens
    groups, trained = stage_groups(pending), set[Hashable]()
    tokens = scored = 0.0
    for cell in pending:
        names = cell.scenario.task_names
        if (group := groups[cell.key]) in trained:
            names = names[1:] or names
        elif group is not None and cell.reference_of is None:
            trained.add(group)
        if cell.reference_of is not None and cell.reference_of < len(names):
            names = (names[cell.reference_of],)
        for name in cell.scenario.task_names:
            if name not in sizes:
                task = load_task(name, data=plan.data, base=suite.base, own=suite.file.task)
                task, most = task.limited(**protocol.limits), protocol.max_length
                to_score = len(task.validation) * mean_tokens(task.validation, most)
                sizes[name] = (len(task.train), mean_tokens(task.train, most), to_score)
        for name in names:
            rows, length, _ = sizes[name]
            steps, _ = cell.protocol.stage_length(name, rows)
            tokens += steps * min(protocol.batch_of(name), rows) * length
        if cell.reference_of is not None:
            scored += sum(sizes[name][2] for name in names)
            continue
        # A row of R after each stage: all tasks so far, or parts of about the same size.
        parts, stages = [sizes[n][2] for n in cell.scenario.task_names], stages_of(cell.scenario)
        is_whole = stages == len(parts)
        scored += sum(accumulate(parts)) if is_whole else sum(parts) * (stages + 1) / 2
    folder = local_folder(protocol.model, protocol.revision)
    parameters = count_parameters(weight_files(folder, protocol.model))
    operations = (6.0 * tokens + 2.0 * scored) * parameters
    # A named device may be that of another machine.
    device = str(resolve_device()) if plan.device == "auto" else plan.device
    gpu = device != "cpu"
    machine = "one GPU" if gpu else "a few CPU cores"
    return Estimate(
        operations / (GPU_SPEED if gpu else CPU_SPEED) + CELL_SECONDS * len(pending),
        f"a guess from tokens × parameters for {machine}; better once a cell is finished",
        GUESS,
        scored / tokens / 3.0 if tokens else 0.0,
    )


def mean_tokens(rows: Rows, max_length: int) -> float:
    """Return the estimated mean tokens per row, from its words; at most `max_length`."""
    first, *others = ([len(text.split()) for text in column[:SAMPLE]] for column in rows.texts)
    if rows.choices:
        first = [len(others) * length for length in first]
    counts = [
        min(sum(lengths) * TOKENS_PER_WORD + 2, max_length * max(1, len(rows.choices)))
        for lengths in zip(first, *others, strict=True)
    ]
    return fmean(counts) if counts else 0.0
