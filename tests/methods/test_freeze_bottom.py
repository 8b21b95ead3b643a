"""What freeze-bottom freezes, in which stages, in encoders, decoders and Trainers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from helpers.cell import Cell, changed, weights
from helpers.checkpoints import make_checkpoint

from clbench.core.errors import SettingsError
from clbench.methods.by_depth import FreezeBottom
from clbench.training.protocol import Protocol


def moved_layers(cell: Cell, index: int = 1) -> set[str]:
    """Return the depths whose weights stage `index` changes."""
    groups = {n: group.name for group in cell.model.layer_groups() for n in group.parameters}
    before = weights(cell)
    cell.stage(index)
    return {groups[name] for name in changed(before, cell)}


@pytest.mark.parametrize(
    ("layers", "trained"),
    [
        (0, {"layer.0", "layer.1", "layer.2", "head"}),
        (2, {"layer.2", "head"}),
        (3, {"head"}),
        (0.4, {"layer.1", "layer.2", "head"}),  # 1.2 of three layers
        (0.75, {"layer.2", "head"}),  # 2.25
    ],
)
def test_the_embeddings_and_the_lowest_layers_stay(
    folder: Path, layers: float, trained: set[str]
) -> None:
    assert moved_layers(Cell(folder, FreezeBottom(layers=layers))) == trained


def test_the_lowest_layers_of_a_decoder_stay(tmp_path: Path) -> None:
    cell = Cell(make_checkpoint("gpt2", tmp_path), FreezeBottom(layers=1))
    depth = len(cell.model.layer_groups()) - 2
    moved = moved_layers(cell)
    assert not moved & {"embeddings", "layer.0"}
    assert {f"layer.{number}" for number in range(1, depth)} < moved


def test_the_first_stage_is_free_by_default(folder: Path) -> None:
    assert [FreezeBottom().acts_in(i) for i in (0, 1)] == [False, True]
    assert FreezeBottom(first=True).acts_in(0)
    assert "layer.0" not in moved_layers(Cell(folder, FreezeBottom(first=True)), index=0)


def test_more_layers_than_the_model_has_are_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="layers = 4 is more than the 3 of the model"):
        Cell(folder, FreezeBottom(layers=4)).begin(1)
    notes = [Cell(folder, FreezeBottom(layers=n)).begin(1).notes for n in (2, 3)]
    assert notes == [[], ["freeze-bottom: only what is above the 3 layers is trained."]]
    for layers in (3, 4, 0.9):  # known before any training
        method = FreezeBottom(layers=layers)
        method.check_protocol(Protocol(model=str(folder)))
        with pytest.raises(SettingsError, match="layers = 4") if layers == 4 else nullcontext():
            method.check_tasks([])


def test_layers_that_share_their_weights_count_once(tmp_path: Path) -> None:
    method = FreezeBottom(layers=3)
    method.check_protocol(Protocol(model=str(make_checkpoint("albert", tmp_path))))
    with pytest.raises(SettingsError, match="layers = 3 is more than the 2 of the model"):
        method.check_tasks([])


def test_frozen_weights_get_no_gradient(folder: Path) -> None:
    cell = Cell(folder, FreezeBottom(layers=1))
    stage = cell.begin(1)
    names = set(stage.trainable_weights())
    assert not any(".layer.0." in name or ".embeddings." in name for name in names)
    assert any(".layer.1." in name for name in names)
    assert all(isinstance(value, torch.nn.Parameter) for value in stage.trainable())
