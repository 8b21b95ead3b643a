"""A suite in which a language model answers two tasks in words, and its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clbench
from clbench.conformance.toys import make_checkpoint
from helpers.workspace import rows, write_rows

SUITE = """
name = "words"
methods = ["vanilla"]
seeds = [0]
references = false

[protocol]
model = "model"
head = "language-model"
epochs = 10
lr = 0.005
batch_size = 8
max_length = 24
answer_length = 8
curve_points = 2
curve_rows = 10
precision = "float32"

[task.mood]
train = "mood.csv"
validation = "mood-dev.csv"
text = "text"
label = "label"
prompt = "{text} is"
answers = { up = "good new", down = "bad" }

[task.thing]
train = "thing.csv"
validation = "thing-dev.csv"
text = "text"
label = "label"
prompt = "{text} of"
answers = { film = "film", story = "long story" }

[task.write]
train = "thing.csv"
validation = "thing-dev.csv"
text = "text"
target = "label"
prompt = "{text} was"
metrics = ["exact"]

[[scenario]]
name = "two"
shift = "sequence"
tasks = ["mood", "thing"]

[[scenario]]
name = "write"
shift = "sequence"
tasks = ["mood", "write"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    make_checkpoint("llama", folder / "model", writes=True)
    tasks = {
        "mood": lambda words: "up" if "good" in words else "down",
        "thing": lambda words: "film" if "film" in words else "story",
    }
    for seed, (name, label) in enumerate(tasks.items()):
        write_rows(folder / f"{name}.csv", rows(2 * seed, 80, label))
        write_rows(folder / f"{name}-dev.csv", rows(2 * seed + 1, 40, label))
    (folder / "words.toml").write_text(SUITE)
    return folder


def run(folder: Path, out: str, *, changes: dict[str, str] | None = None, **options: Any) -> Any:
    text = SUITE
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    suite = folder / f"{out}.toml"
    suite.write_text(text)
    options = {"scenarios": ["two"], **options}
    return clbench.run(suite, out=folder / out, **options)


def cell(result: Any) -> Any:
    (only,) = result.cells
    assert only.status == "ok", only.reason
    return only
