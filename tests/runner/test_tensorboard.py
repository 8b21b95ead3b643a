"""Curves for TensorBoard, read back by TensorBoard's own reader."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from helpers.workspace import Steps, Workspace

import clbench
from clbench import api
from clbench.core.errors import RunFolderError, SettingsError
from clbench.runner.run_state import RunState, TensorBoard, read_run_state

tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def planned(world: Workspace) -> RunState:
    options = clbench.RunOptions(
        out=world.folder / "out",
        scenarios=["mood-thing"],
        plugins=[world.plugin],
        references=False,
        epochs=1,
        limit=48,
    )
    return read_run_state(api.plan_run(world.suite, options))


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = tensorboard.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


class Peeks(Steps):
    """Counts the points in the log during training."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.counts: list[int] = []

    def point(self, cell: Any, stage: int, step: int, values: Any) -> None:
        self.counts.append(len(read(self.folder / cell.key).get(f"stage{stage}/loss", [])))


def test_points_are_written_while_a_cell_is_trained_and_equal_its_curves(
    world: Workspace,
) -> None:
    folder = world.folder / "out" / "tensorboard"
    inner = Peeks(folder)
    run = api.execute(planned(world), listener=TensorBoard(inner, folder))
    (cell,) = run.cells
    assert inner.counts == [1, 2, 3, 1, 2, 3]
    logs = read(folder / cell.key)
    for number, stage in enumerate(cell.stages, 1):
        curves = stage.curves
        for name in ("loss", "lr"):
            expected = dict(zip(curves["step"], curves[name], strict=True))
            assert dict(logs[f"stage{number}/{name}"]) == pytest.approx(expected)
        for task, points in curves["scores"].items():
            logged = dict(logs[f"stage{number}/score of {task}"])
            assert logged == pytest.approx(dict(points))
    assert logs["final/p_o"] == [(0, pytest.approx(cell.scores["p_o"]))]


def test_a_cell_that_is_run_again_begins_its_logs_anew(world: Workspace) -> None:
    folder = world.folder / "out" / "tensorboard"
    key = planned(world).plan.cells[0].key
    (folder / key).mkdir(parents=True)
    (folder / key / "old").write_text("x")
    api.execute(planned(world), listener=TensorBoard(Steps(), folder))
    assert not (folder / key / "old").exists()


def test_a_folder_that_cannot_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("x")
    with pytest.raises(RunFolderError, match="tensorboard cannot be written: "):
        TensorBoard(Steps(), tmp_path / "tensorboard")


def test_a_run_goes_on_without_logs_that_cannot_be_written(world: Workspace) -> None:
    folder = world.folder / "out" / "tensorboard"
    folder.mkdir(parents=True)
    own = folder / planned(world).plan.cells[0].key
    own.write_text("x")
    steps = Steps()
    run = api.execute(planned(world), listener=TensorBoard(steps, folder))
    assert not run.failed, run.failed[0].reason
    (note,) = (note for note in steps.notes if "TensorBoard" in note)
    assert note.startswith(f"No more TensorBoard logs: {own} cannot be written: File exists. ")


def test_a_missing_package_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SettingsError, match=r"pip install 'clbench\[tensorboard\]'"):
        TensorBoard(Steps(), tmp_path)
