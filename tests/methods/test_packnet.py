from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cell import PROTOCOL, Cell, weights
from helpers.checkpoints import make_checkpoint

from clbench.core.errors import SettingsError
from clbench.methods.partial_updates import PackNet
from clbench.methods.selection import matrices
from clbench.runner.stage_cache import pack
from clbench.training.protocol import Protocol

THREE = ("a", "b", "a")


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, [1 / 8, 1 / 2, 1 / 4, 1 / 8]),  # the first share is free
        ({"prune": "equal"}, [0, 1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_each_task_owns_a_share_of_every_matrix(
    folder: Path, settings: Any, shares: list[float]
) -> None:
    method = PackNet(**settings)
    Cell(folder, method, heads=THREE).run()
    for owner in method.owner.values():
        counts = torch.bincount(owner.flatten().long(), minlength=4) / owner.numel()
        assert counts.tolist() == pytest.approx(shares, abs=0.01)


def test_the_largest_weights_stay_and_the_others_are_0(folder: Path) -> None:
    before_pruning = {}

    class Watched(PackNet):
        def before_phase(self, stage):  # type: ignore[no-untyped-def]
            trained = {n: w.detach().clone() for n, w in self._weights.items()}
            super().before_phase(stage)
            if stage.phase == 1:
                before_pruning[stage.index] = trained

    method = Watched(prune=0.75)
    cell = Cell(folder, method)
    cell.stage(0)
    for name, trained in before_pruning[0].items():
        own = method.owner[name] == 1
        assert trained[own].abs().min() >= trained[~own].abs().max()
        assert (weights(cell)[name][~own] == 0).all()
        assert own.float().mean() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_finished_tasks_keep_weights_and_outputs_to_the_bit(folder: Path, decay: float) -> None:
    """Weights of a task never move again, and its outputs stay in every bit; head shared."""
    protocol = Protocol(**{**PROTOCOL.model_dump(), "weight_decay": decay})
    method = PackNet()
    cell = Cell(folder, method, heads=("a", "a", "a"), protocol=protocol)
    before = []
    for index in range(3):
        cell.stage(index)
        before.append((cell.scored(index), weights(cell)))
    for index in range(3):
        assert torch.equal(cell.scored(index), before[index][0])
    now = weights(cell)
    for name, owner in method.owner.items():
        assert torch.equal(now[name][owner == 1], before[0][1][name][owner == 1])
        assert torch.equal(now[name][owner == 2], before[1][1][name][owner == 2])
    for name, value in before[0][1].items():
        if name.startswith("backbone.") and name not in method.owner:
            assert torch.equal(now[name], value)  # biases, norms, embeddings
    assert not torch.equal(now["heads.a.weight"], before[0][1]["heads.a.weight"])


def test_scoring_restores_the_weights(folder: Path) -> None:
    cell = Cell(folder, PackNet()).run()
    assert [trace.steps for trace in cell.traces] == [6 + 3, 6 + 3]
    before = weights(cell)
    with cell.method.scoring(0):
        inside = weights(cell)
    after = weights(cell)
    assert any(not torch.equal(before[name], inside[name]) for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_state_is_one_byte_a_weight(folder: Path) -> None:
    method = PackNet()
    cell = Cell(folder, method).run()
    _, tensors = pack(method.state())
    owners = sum(owner.numel() for owner in method.owner.values())
    heads = 2 * 4 * sum(p.numel() for p in cell.model.head("t0").parameters())
    assert sum(t.numel() * t.element_size() for t in tensors.values()) == owners + heads


def test_pruning_that_leaves_later_tasks_nothing_is_refused(folder: Path) -> None:
    method = PackNet(prune=0.2)
    cell = Cell(folder, method)
    largest = max(owner.numel() for owner in method.owner.values())
    free, tasks = largest, 0
    while free:
        free, tasks = round(0.2 * free), tasks + 1
    cell.context.stages = tasks
    PackNet(prune=0.2).setup(cell.context)
    cell.context.stages = tasks + 1
    message = f"prune = 0.2 leaves no weights to task {tasks + 1} of {tasks + 1}. Raise prune"
    with pytest.raises(SettingsError, match=message):
        PackNet(prune=0.2).setup(cell.context)
    PackNet(prune="equal").setup(cell.context)


def test_matrices_are_the_dense_layers(tmp_path: Path) -> None:
    cell = Cell(make_checkpoint("gpt2", tmp_path), PackNet())
    names = matrices(cell.model)
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in names} == {
        "c_attn",
        "c_proj",
        "c_fc",
    }
    assert len(names) == 3 * 4
