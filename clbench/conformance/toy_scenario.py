"""Three tiny tasks, and a method's way through them by the same code as in a run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from clbench.conformance.candidate import Candidate
from clbench.conformance.checkpoints import WORDS
from clbench.evaluation.cell_runner import ComputeSettings
from clbench.evaluation.prepare import PreparedScenario, ScenarioPreparer
from clbench.seeds import numpy_stream
from clbench.shifts.scenario import Scenario, ScenarioReport
from clbench.suite.plan import Cell
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.task import Rows, Task
from clbench.training.batches import TaskData
from clbench.training.device import Precision
from clbench.training.protocol import Protocol

STAGES = 3
BATCH = 4
CPU = torch.device("cpu")


@dataclass(frozen=True)
class ToyScenario:
    """Where a method is checked.

    The third task shares the head of the first and contradicts its labels.

    Attributes
    ----------
    model
        A built-in model or a folder.
    scene
        The tasks' rows for that model.
    protocol
        Short stages, float32, and a rate at which so few steps leave their traces.
    folder
        For trained stages; removed after the check.
    """

    model: str
    scene: PreparedScenario
    protocol: Protocol
    folder: Path

    @property
    def numerics(self) -> ComputeSettings:
        """The CPU in float32."""
        return ComputeSettings(CPU, Precision("float32", "cpu"), {})

    def cell(self, subject: Candidate) -> Cell:
        """The cell of a method."""
        spec = ScenarioSpec(name=self.scene.scenario.name, shift="dataset")
        recipe = {"model": self.model, "method": subject.name}
        return Cell(spec, subject.baseline, 0, self.protocol, None, recipe)

    def fresh_rows(self) -> PreparedScenario:
        """The scene with training rows of its own, which may be overwritten."""
        return replace(self.scene, train=tuple(_copied(data) for data in self.scene.train))


def make_toy_scenario(model: str, folder: Path, *, rows: int = 24) -> ToyScenario:
    """Tasks of `rows` training rows each, for a model."""
    protocol = Protocol(
        model=model,
        epochs=1,
        batch_size=BATCH,
        max_length=16,
        lr=1e-4,
        curve_points=1,
        curve_rows=4,
        precision="float32",
    )
    builder = ScenarioPreparer(protocol, data=None, base=folder, own={}, device=CPU, saved=None)
    tasks = (
        _task("first", rows, {"good": 0, "bad": 1}, head="first"),
        _task("second", rows, {"film": 0, "plot": 1, "story": 2}, head="second"),
        _task("third", rows, {"bad": 0, "good": 1}, head="first"),
    )
    assert len(tasks) == STAGES
    scenario = Scenario("check", "dataset", tasks, {}, None, ScenarioReport(()))
    return ToyScenario(model, builder.tokenise(scenario), protocol, folder)


@contextmanager
def own_cache() -> Iterator[Path]:
    """A folder for this check alone, which also takes the place of the user's cache."""
    before = os.environ.get("CLBENCH_CACHE")
    with tempfile.TemporaryDirectory(prefix="clbench-check-") as folder:
        os.environ["CLBENCH_CACHE"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["CLBENCH_CACHE"]
            else:
                os.environ["CLBENCH_CACHE"] = before


def _task(name: str, rows: int, labels: Mapping[str, int], *, head: str) -> Task:
    """Sentences of 6 to 10 words, one of which decides the label."""
    rng = numpy_stream("check", name)
    fill = [word for word in WORDS if word not in labels]

    def drawn(count: int) -> Rows:
        words = list(labels)
        marks = [words[i % len(words)] for i in range(count)]
        texts = []
        for mark in marks:
            text = [str(word) for word in rng.choice(fill, int(rng.integers(5, 10)))]
            text.insert(int(rng.integers(len(text) + 1)), mark)
            texts.append(" ".join(text))
        return Rows.of(texts, None, [labels[mark] for mark in marks])

    names = tuple(str(number) for number in range(len(labels)))
    return Task(name, names, ("accuracy",), drawn(rows), drawn(12), head)


def _copied(data: TaskData) -> TaskData:
    rows = data.rows
    own = replace(rows, ids=np.array(rows.ids), labels=np.array(rows.labels))
    return replace(data, rows=own)
