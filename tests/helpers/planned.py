"""A suite of two small tasks, and the plan that is made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clbench.suite.options import RunOptions
from clbench.suite.plan import Plan, make_plan
from clbench.suite.read import read_suite

SUITE = """methods = ["vanilla", "frozen"]
seeds = [0, 1]

[protocol]
epochs = 3
task_epochs = { "a" = 5 }
limit = 100

[task.a]
train = "a.csv"
validation = "a-dev.csv"
text = "text"
label = "label"

[task.b]
train = "b.csv"
validation_fraction = 0.5
text = "text"
label = "label"

[[scenario]]
shift = "dataset"
tasks = ["a", "b"]

[[scenario]]
shift = "sentence-length"
task = "b"

[[scenario]]
shift = "embedding-cluster"
task = "b"
k = 3
"""

Make = Callable[..., Plan]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "clbench.suite.recipe.model_identity", lambda name, revision=None: {"files": name}
    )
    monkeypatch.setattr("clbench.suite.plan.declared_pooling", lambda name, revision=None: None)
    monkeypatch.setattr("clbench.suite.plan.pooling_notes", lambda name, revision=None: ())
    for name in ("a.csv", "a-dev.csv", "b.csv"):
        Path(name).write_text("text,label\nwell,1\nbad,0\n")
    Path("s.toml").write_text(SUITE)

    def of(text: str | None = None, **options: Any) -> Plan:
        if text is not None:
            Path("s.toml").write_text(text)
        return make_plan(read_suite("s.toml"), RunOptions(**options))

    return of
