"""Stages on disk: packing of states, and resuming interrupted cells."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.workspace import Steps, Workspace, measured
from safetensors import SafetensorError

from clbench.runner.stage_cache import ScoredStage, UnstorableStateError, pack, unpack
from clbench.training.protocol import StageRecord

CPU = torch.device("cpu")
CELL = "cells/mood-thing--vanilla--seed0.json"


def test_pack_and_unpack_return_nested_values() -> None:
    state = {
        "anchor": {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(True)},
        "kept": [(np.array([3, 1]), 0.5), None, "text"],
        "mean": np.array(0.25),
        2: -1,
    }
    skeleton, tensors = pack(state)
    back = unpack(json.loads(json.dumps(skeleton)), tensors, CPU)
    assert torch.equal(back["anchor"]["a.weight"], state["anchor"]["a.weight"])
    assert back["anchor"]["b"].dtype == torch.bool
    assert back["kept"][0][0].tolist() == [3, 1]
    assert isinstance(back["kept"][0], tuple)
    assert back["kept"][1:] == [None, "text"]
    assert (back["mean"].shape, float(back["mean"])) == ((), 0.25)
    assert back[2] == -1


def test_a_scored_stage_survives_json() -> None:
    curves = {"step": [2], "loss": [0.5], "lr": [1e-3], "scores": {"a": [[2, 0.5]]}}
    record = StageRecord(
        task="a",
        rows=8,
        steps=2,
        epochs=1.0,
        examples=8,
        tokens=40,
        train_seconds=0.1,
        memory_mb=None,
        curves=curves,
    )
    record.curves["odd"] = [[1.0, math.inf]]  # as a method may record it
    stage = ScoredStage(record, [{"accuracy": 0.5}, None], ["8:AAA=", None], [], {})
    assert ScoredStage.from_json(json.loads(json.dumps(stage.to_json()))) == stage


def test_packed_tensors_are_copies() -> None:
    weight = torch.zeros(2)
    _, tensors = pack({"w": weight})
    weight += 1
    assert tensors["t0"].tolist() == [0.0, 0.0]


def test_views_and_shared_tensors_are_stored_whole() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    skeleton, tensors = pack([base, base.T])
    back = unpack(skeleton, tensors, CPU)
    assert torch.equal(back[1], base.T)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": {1, 2}}}, r"state\.a\.b is a set"),
        ([object()], r"state\[0\] is a object"),
        ({(1, 2): 0}, "key of type tuple"),
        ({"t": np.array(["x"])}, r"state\.t is an array"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named_by_its_path(value: object, path: str) -> None:
    with pytest.raises(UnstorableStateError, match=path):
        pack(value)


@pytest.mark.slow
def test_an_interrupted_cell_resumes_with_equal_results(world: Workspace) -> None:
    whole = world.run("whole", scenario="three", epochs=1)
    for stop_after in (20, 59):
        out = f"broken-{stop_after}"
        with pytest.raises(KeyboardInterrupt):
            world.run(out, scenario="three", epochs=1, listener=Steps(stop_after))
        again = Steps()
        continued = world.run(out, scenario="three", epochs=1, listener=again)
        assert measured(continued) == measured(whole), out
        # Only the interrupted stage and those after it are trained again.
        assert again.steps == 60 - (stop_after - 1) // 20 * 20, out
        cached = [stage.cached for stage in continued.cells[0].stages]
        assert cached == [i < (stop_after - 1) // 20 for i in range(3)], out


def test_a_stage_that_was_scored_by_other_metrics_is_trained_again(world: Workspace) -> None:
    world.run(epochs=1, keep_stages=True)
    text = world.suite.read_text().replace("[task.mood]", '[task.mood]\nmetrics = ["f1"]')
    world.suite.write_text(text)
    run = world.run(epochs=1, keep_stages=True, replace=True)
    assert not run.failed, run.failed[0].reason
    assert run.cells[0].metrics[0][0].keys() == {"f1"}
    assert [stage.cached for stage in run.cells[0].stages] == [False, False]


@pytest.mark.slow
def test_curves_and_notes_of_a_method_survive_an_interruption(world: Workspace) -> None:
    plugin = world.write(
        "recorder.py",
        """
import clbench


@clbench.method("recorder")
class Recorder(clbench.Method):
    def setup(self, context):
        context.note("set up")

    def before_stage(self, stage):
        stage.note(f"{stage.index} begins")

    def before_step(self, stage):
        if stage.step % 10 == 0:
            stage.record("height", stage.index)

    def after_stage(self, stage):
        stage.record("height", 10 + stage.index)
        stage.note(f"{stage.index} is over")
""",
    )
    options = {
        "scenario": "three",
        "methods": ["recorder"],
        "plugins": [world.plugin, plugin],
        "epochs": 1,
    }
    with pytest.raises(KeyboardInterrupt):
        world.run("broken", listener=Steps(50), **options)
    expected = [f"{stage} {what}" for stage in range(3) for what in ("begins", "is over")]
    for name in ("broken", "whole"):
        (cell,) = world.run(name, **options).cells
        notes = cell.notes[cell.notes.index("set up") + 1 :]
        assert [note for note in notes if note in expected] == expected
        for index, stage in enumerate(cell.stages):
            assert stage.curves["height"] == [[0, index], [10, index], [20, 10 + index]]


def _cut(content: bytes) -> bytes:
    return content[:-1]


def _one_bit(content: bytes) -> bytes:
    """Change a weight; the file is still readable."""
    return content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]


def _one_digit(content: bytes) -> bytes:
    """Change the facts about the training."""
    return content.replace(b'\\"rows\\": 1', b'\\"rows\\": 2', 1)


@pytest.mark.parametrize("damage", [_cut, _one_bit, _one_digit])
def test_a_damaged_stage_is_trained_again(
    world: Workspace, damage: Callable[[bytes], bytes]
) -> None:
    first = world.run(epochs=1)
    (entry,) = (first.path / "stages").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert entry.read_bytes() != whole
    (first.path / CELL).unlink()
    again = world.run(epochs=1)
    assert measured(again) == measured(first)
    assert [stage.cached for stage in again.cells[0].stages] == [False, False]
    (first.path / CELL).unlink()
    assert [stage.cached for stage in world.run(epochs=1).cells[0].stages] == [True, False]


def test_a_full_disk_costs_only_the_resumption(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    whole = world.run(out="whole", epochs=1)
    monkeypatch.setattr("safetensors.torch.save_file", full)
    run = world.run(out="full", epochs=1)
    assert measured(run) == measured(whole)
    assert (
        f"a trained stage could not be saved in {world.folder}/full/stages (I/O error: No space "
        "left on device (os error 28)), so an interrupted cell trains it again."
    ) in run.cells[0].notes
    assert list((world.folder / "full/stages").iterdir()) == []


def test_a_state_that_cannot_be_stored_costs_only_the_resumption(world: Workspace) -> None:
    plugin = world.write(
        "odd.py",
        "import clbench\n\n\n@clbench.method('odd')\nclass Odd(clbench.Method):\n"
        "    def before_stage(self, stage):\n        self.thing = object()\n",
    )
    run = world.run(methods=["odd"], plugins=[world.plugin, plugin], epochs=1)
    (cell,) = run.cells
    assert cell.status == "ok"
    assert any("state.thing is a object" in note for note in cell.notes)
