"""A toy scenario: a random BERT with 16 words, learnable tasks, and two that contradict."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import clbench
from clbench.results.cell import CellResult
from clbench.runner.run_state import Listener
from helpers.checkpoints import make_checkpoint

SUITE = """
name = "small"
methods = ["vanilla"]
seeds = [0]

[protocol]
model = "model"
epochs = {epochs}
lr = 0.002
batch_size = 8
max_length = 24
curve_points = 3
curve_rows = 10
precision = "float32"

[task.mood]
train = "mood.csv"
validation = "mood-dev.csv"
text = "text"
label = "label"

[task.mood-upside-down]
train = "down.csv"
validation = "down-dev.csv"
text = "text"
label = "label"

[task.thing]
train = "thing.csv"
validation = "thing-dev.csv"
text = "text"
label = "label"

[[scenario]]
name = "mood-thing"
shift = "dataset"
tasks = ["mood", "thing"]

[[scenario]]
name = "three"
shift = "dataset"
tasks = ["mood", "thing", "mood"]

[[scenario]]
name = "mood-length"
shift = "sentence-length"
task = "mood"

[[scenario]]
name = "opposite"
shift = "opposite"
tasks = ["mood", "mood-upside-down"]
"""

OPPOSITE = '''
from dataclasses import replace

import clbench


@clbench.shift("opposite")
class Opposite(clbench.Shift):
    """Tasks with a shared head, the second with opposite labels."""

    tasks: list[str]

    def build(self, context):
        return [replace(context.task(name), head="shared") for name in self.tasks]
'''


class Workspace:
    """The folder of the suite; runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.suite = folder / "small.toml"
        self.plugin = folder / "opposite.py"

    def run(self, out: str = "out", *, scenario: str = "mood-thing", **options: Any) -> clbench.Run:
        options = {"plugins": [self.plugin], "references": False, **options}
        return clbench.run(self.suite, out=self.folder / out, scenarios=[scenario], **options)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


def write_jsonl(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def rows(seed: int, count: int, label: Callable[[list[str]], str]) -> list[tuple[str, str]]:
    """Return sentences with exactly one of good and bad, and one of film and story."""
    rng = random.Random(seed)
    fill = ["the", "a", "was", "is", "very", "and", "of", "it"]
    sentences = []
    for _ in range(count):
        words = [rng.choice(fill) for _ in range(rng.randint(1, 7))]
        words += [rng.choice(["good", "bad"]), rng.choice(["film", "story"])]
        rng.shuffle(words)
        sentences.append((" ".join(words), label(words)))
    return sentences


def write_rows(path: Path, sentences: list[tuple[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(sentences)


def make_toy_scenario(tmp_path: Path) -> Workspace:
    """Checkpoint, rows, suite and plug-in in one folder."""
    make_checkpoint("bert", tmp_path / "model")
    tasks = {
        "mood": lambda words: "up" if "good" in words else "down",
        "down": lambda words: "down" if "good" in words else "up",
        "thing": lambda words: "film" if "film" in words else "story",
    }
    for number, (name, label) in enumerate(tasks.items()):
        write_rows(tmp_path / f"{name}.csv", rows(number, 160, label))
        write_rows(tmp_path / f"{name}-dev.csv", rows(100 + number, 80, label))
    workspace = Workspace(tmp_path)
    workspace.suite.write_text(SUITE.format(epochs=4), encoding="utf-8")
    workspace.plugin.write_text(OPPOSITE, encoding="utf-8")
    return workspace


@pytest.fixture
def world(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """A copy of the toy scenario's files, as the working directory."""
    template = tmp_path_factory.getbasetemp() / "toy-scenario"
    if not template.exists():
        template.mkdir()
        make_toy_scenario(template)
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path)


class Steps(Listener):
    """Counts training steps, and interrupts the run after `stop_after` of them."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.steps = 0
        self.notes: list[str] = []
        self.finished: list[str] = []
        self._stop_after = stop_after

    def started(self, total_cells: int, pending: int) -> None:
        self.pending = pending

    def progress(self, cell: Any, stage: int, stages: int, step: int, steps: int) -> None:
        self.steps += 1
        if self.steps == self._stop_after:
            raise KeyboardInterrupt

    def cell_finished(self, result: CellResult) -> None:
        self.finished.append(result.key)

    def note(self, text: str) -> None:
        self.notes.append(text)


def measured(run: clbench.Run) -> dict[str, Any]:
    """Return everything that must be equal in equal runs."""
    return {
        cell.key: (
            cell.R,
            cell.metrics,
            cell.scores,
            [stage.curves for stage in cell.stages],
            [(s.task, s.rows, s.steps, s.examples, s.tokens) for s in cell.stages],
        )
        for cell in run.cells
    }
