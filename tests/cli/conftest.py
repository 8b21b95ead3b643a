from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import FakeExecutor

SUITE = """
name = "mine"
methods = ["vanilla", "frozen"]
seeds = [0, 1]

[task.one]
train = "one.csv"
validation = "dev.csv"
text = "text"
label = "label"

[task.two]
train = "one.csv"
validation = "dev.csv"
text = "text"
label = "label"

[[scenario]]
shift = "dataset"
tasks = ["one", "two"]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a suite of one scenario, two methods and two seeds."""
    (tmp_path / "mine.toml").write_text(SUITE)
    rows = [f"some words number {n},{n % 2}" for n in range(40)]
    for name in ("one.csv", "dev.csv"):
        (tmp_path / name).write_text("text,label\n" + "\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeExecutor:
    """A fake executor, and no preparation of scenarios."""
    fake = FakeExecutor()
    monkeypatch.setattr("clbench.evaluation.run_plan.InProcessExecutor", lambda threads: fake)
    monkeypatch.setattr("clbench.evaluation.run_plan._prepare_all", lambda *arguments: None)
    return fake


@pytest.fixture
def clbench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line here: exit code, stdout, stderr."""
    from clbench.cli import main

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        told = capsys.readouterr()
        return code, told.out, told.err

    return call
