from __future__ import annotations

from pathlib import Path

import pytest
from fake_engine import FakeExecutor

import clbench
from clbench.errors import RunFolderError


def test_run_returns_frame_summary_and_failures(place: Path, engine: FakeExecutor) -> None:
    engine.fails = {"one-two--frozen--seed1"}
    run = clbench.run("mine.toml", out="there", methods=["vanilla", "frozen"])
    assert run.path == Path("there")
    assert run.frame.groupby("method")[["p_o", "p_s"]].mean().loc["vanilla"].tolist() == [0.8, 0.7]
    assert [cell.key for cell in run.failed] == ["one-two--frozen--seed1"]
    assert run.summary["seeds"].tolist() == [2, 1]
    assert len(run.cells) == 4


def test_single_values_stand_for_lists(place: Path, engine: FakeExecutor) -> None:
    run = clbench.run("mine.toml", methods="frozen", scenarios="one*", seeds=3)
    assert [cell.key for cell in run.cells] == ["one-two--frozen--seed3"]


def test_cells_of_other_settings_are_refused(place: Path, engine: FakeExecutor) -> None:
    clbench.run("mine.toml", methods="frozen")
    with pytest.raises(RunFolderError, match="epochs = 3, now 1"):
        clbench.run("mine.toml", methods="frozen", epochs=1)
    with pytest.raises(RunFolderError, match="epochs = 3, now 1"):
        clbench.run("mine.toml", methods="vanilla", epochs=1)


def test_the_listener_is_called(place: Path, engine: FakeExecutor) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
            return lambda *arguments: self.calls.append(name)

    recorder = Recorder()
    clbench.run("mine.toml", seeds=[0], listener=recorder)
    cell = ["cell_started", "progress", "cell_finished"]
    assert recorder.calls == ["started", *cell, *cell]
    recorder = Recorder()
    clbench.run("mine.toml", seeds=[0], listener=recorder)
    assert recorder.calls == ["started"]
