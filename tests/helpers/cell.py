"""A toy cell that trains stages with one method, for the tests of methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clbench.methods.base import Method, at_rate
from clbench.models.classifier import build_classifier
from clbench.models.encoding import EncodedRows
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.device import Precision
from clbench.training.dropout import install
from clbench.training.engine import train_stage
from clbench.training.protocol import Protocol, StageRecord
from clbench.training.stage import Stage

CPU = torch.device("cpu")
PROTOCOL = Protocol(epochs=2, batch_size=4, lr=1e-3, curve_points=0)


def rows(seed: int, count: int = 12) -> EncodedRows:
    """Return random rows of 4 to 8 tokens with random labels of two classes."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 9, count)
    ids = rng.integers(5, 20, int(lengths.sum())).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return EncodedRows(ids, None, offsets, rng.integers(0, 2, count))


class Cell:
    """Stages of twelve random rows each, six steps a stage by the default protocol.

    Parameters
    ----------
    folder
        A checkpoint, such as the fixture `folder`.
    method
        A new instance.
    protocol
        Settings of training.
    heads
        The head of each stage; equal names share one.
    shown
        Outputs of the only head that are in use in each stage, so that it grows: each stage's rows
        have its new classes.
    seed
        The cell's seed.
    """

    def __init__(
        self,
        folder: Path,
        method: Method,
        *,
        protocol: Protocol = PROTOCOL,
        heads: tuple[str, ...] = ("t0", "t1"),
        shown: tuple[int, ...] = (),
        seed: int = 0,
    ) -> None:
        self.method, self._shown = method, shown
        if shown:
            heads = ("a",) * len(shown)
        self.tasks = [TaskData(i, f"t{i}", head, False, rows(i), 0) for i, head in enumerate(heads)]
        for i, first in enumerate((0, *shown[:-1]) if shown else ()):
            own = self.tasks[i].rows
            labels = first + own.labels % (shown[i] - first)
            self.tasks[i] = replace(self.tasks[i], rows=replace(own, labels=labels))
        model = build_classifier(
            str(folder),
            heads=dict.fromkeys(heads, max(shown, default=2)),
            head_seed=lambda head: len(head),
        )
        model.shown = {"a": shown[0]} if shown else {}
        protocol = at_rate(method, protocol)
        precision = Precision("float32", "cpu")
        self.context = Context(
            model, str(folder), None, protocol, CPU, precision, seed, "s", len(heads), None
        )
        self.pretrained = self.context.snapshot()
        method.setup(self.context)
        self.context.masks = install(model, model.backbone, CPU)
        self.start = self.context.snapshot()

    @property
    def model(self) -> Any:
        """The classifier."""
        return self.context.model

    def relabel(self, index: int, classes: list[int]) -> None:
        """Give the rows of a task these classes in turn."""
        task = self.tasks[index]
        labels = np.asarray(classes)[np.arange(len(task.rows)) % len(classes)]
        self.tasks[index] = replace(task, rows=replace(task.rows, labels=labels))

    def regress(self, index: int) -> Tensor:
        """Give a task targets from 0 to 5, and its head one output; return the targets."""
        task = self.tasks[index]
        values = np.linspace(0.0, 5.0, len(task.rows), dtype=np.float32)
        self.tasks[index] = replace(task, regression=True, rows=replace(task.rows, labels=values))
        self.model.heads[task.head] = torch.nn.Linear(32, 1)
        return torch.from_numpy(values)

    def open(self, index: int) -> Stage:
        """Return a new stage, without calling any hook."""
        context = {name: getattr(self.context, name) for name in Context.__dataclass_fields__}
        stage = Stage(**context, index=index, tasks=self.tasks)
        stage.reads_earlier_rows = self.method.keeps_rows
        stage.heads = frozenset([stage.data.head])
        if self._shown:
            stage.shown_before = {"a": self._shown[index - 1]} if index else {}
            self.model.shown = {"a": self._shown[index]}
        return stage

    def begin(self, index: int) -> Stage:
        """Return a stage after `before_stage`, to call the other hooks by hand."""
        stage = self.open(index)
        stage.total_steps = stage.steps = 6
        self.method.before_stage(stage)
        return stage

    def train(self, index: int) -> tuple[Stage, StageRecord]:
        """Train stage `index`, without consolidation."""
        stage = self.open(index)
        return stage, train_stage(stage, self.method)

    def stage(self, index: int) -> tuple[Stage, StageRecord]:
        """Train stage `index` and let the method consolidate."""
        stage, record = self.train(index)
        self.method.after_stage(stage)
        return stage, record

    def run(self) -> Cell:
        """Train all stages."""
        self.traces = [self.stage(index)[1] for index in range(len(self.tasks))]
        return self

    def outputs(self) -> Tensor:
        """Return the logits of all rows of the first task: [rows, classes]."""
        data = self.tasks[0]
        positions = np.arange(len(data.rows))
        self.model.eval()
        with torch.no_grad():
            logits: Tensor = self.model(
                data.batch(positions, self.context.device).inputs, data.head
            )
        return logits

    def scored(self, task: int) -> Tensor:
        """Return the logits of all rows of a task, as the method has it scored."""
        stage = self.open(task)
        self.model.eval()
        with self.method.scoring(task), torch.no_grad():
            return stage.logits(stage.data.batch(np.arange(len(stage.data.rows)), stage.device))

    def moved(self) -> float:
        """Return the squared distance of the backbone to its weights after `setup`."""
        return float(self.context.squared_distance(self.start).detach())


def weights(cell: Cell) -> dict[str, Tensor]:
    """Return a copy of all weights, heads included."""
    return {name: p.detach().clone() for name, p in cell.model.named_parameters()}


def changed(before: dict[str, Tensor], cell: Cell) -> set[str]:
    """Return the names of the weights that are not as before, to the bit."""
    after = weights(cell)
    return {name for name in before if not torch.equal(before[name], after[name])}


def differ(first: Cell, second: Cell) -> bool:
    """Whether any weight of two cells differs in any bit."""
    return bool(changed(weights(first), second))
