"""What methods do with a head that tasks share: its loss, and what else acts on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell
from methods.test_all_methods import CASES, WITH_PEFT

from clbench.methods.base import Method, Vanilla
from clbench.methods.ewc import task_fisher
from clbench.methods.replay import Multitask, Replay
from clbench.suite.baselines import read_baseline
from clbench.suite.read import packaged_files
from clbench.training.stage import Stage

STAGE = PROTOCOL.model_copy(update={"head_loss": "stage"})
OUTPUTS_TOO = {"der++", "lwf", "smart"}  # a term on all outputs beside the loss of the labels
UNSEEN = {"l2-sp", "l2-sp-previous", "recadam-previous", "wise-ft", "wise-ft-by-depth"}
UNSEEN |= {"migu", "sam"}
"""They scale all steps by one number, or need the loss itself."""
OWN_LOSS = {"icarl", "klda", "prototypes", "ranpac"}


def made(name: str) -> Method:
    if name in WITH_PEFT:
        pytest.importorskip("peft")
    return CASES[name]()


def head_of(cell: Cell) -> torch.Tensor:
    return cell.model.head("a").weight


def test_the_loss_compares_the_classes_of_the_stage(folder: Path) -> None:
    for protocol, first in ((PROTOCOL, 0), (STAGE, 2)):
        cell = Cell(folder, Vanilla(), shown=(2, 4), protocol=protocol)
        stage = cell.open(1)
        batch = stage.data.batch(np.arange(4), stage.device)
        outputs = torch.randn(4, 4)
        among = outputs[:, first:].log_softmax(1)
        wanted = -among[torch.arange(4), batch.labels - first].mean()
        assert torch.allclose(stage.criterion(outputs, batch), wanted)
        for part, _ in batch.parts(2):
            assert part.compared is batch.compared


@pytest.mark.parametrize("name", [name for name in CASES if name not in OWN_LOSS | OUTPUTS_TOO])
def test_rows_of_the_stage_train_its_classes_alone(folder: Path, name: str) -> None:
    cell = Cell(folder, made(name), shown=(2, 4), protocol=STAGE)
    cell.stage(0)
    stage = cell.begin(1)
    cell.method.before_phase(stage)
    cell.model.train()
    if name == "replay":  # rows of earlier tasks compare all classes so far
        cell.method.kept = {}  # type: ignore[attr-defined]
    cell.method.loss(stage, stage.data.batch(np.arange(6), stage.device)).backward()
    gradient = cell.model.head("a").weight.grad
    assert not gradient[:2].any()
    assert gradient[2:].any()


@pytest.mark.parametrize("method", [Replay(memory=8), Multitask()])
def test_rows_of_earlier_tasks_compare_all_classes(folder: Path, method: Method) -> None:
    cell = Cell(folder, method, shown=(2, 4), protocol=STAGE)
    cell.stage(0)
    stage = cell.begin(1)
    assert stage.data.compared is not None
    assert all(stage.earlier(task).compared is None for task in (0, 1))
    if isinstance(method, Replay):
        (part,) = method.draw(stage, "replay")
        loss = method.memory_loss(stage, [part])
        assert torch.autograd.grad(loss, head_of(cell))[0][2:].any()


def test_fisher_information_is_that_of_the_loss(folder: Path) -> None:
    totals = []
    for protocol in (PROTOCOL, STAGE):
        cell = Cell(folder, Vanilla(), shown=(2, 4), protocol=protocol)
        cell.stage(0)
        stage, _ = cell.train(1)
        names = cell.model.head_parameter_names("a")
        fisher = task_fisher(stage, names, mode="sampled", examples=None)
        totals.append([float(fisher[names[0]][rows].sum()) for rows in (slice(2), slice(2, None))])
    assert totals[0][0] > 0.0
    assert totals[1][0] == 0.0 < totals[1][1]


@pytest.mark.parametrize("name", sorted({*CASES} - UNSEEN))
def test_holding_a_head_is_declared(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of constant gradient moves each weight by it, unless something else acts on them."""
    method = made(name)
    own_adam = Stage.adam

    def sgd(stage: Stage, groups: list[dict[str, Any]], kind: Any = None) -> torch.optim.Optimizer:
        return own_adam(stage, groups, kind) if kind else torch.optim.SGD(groups, lr=0.1)

    protocol = PROTOCOL.model_copy(update={"lr": 0.1, "schedule": "constant", "warmup": 0.0})
    cell = Cell(folder, method, shown=(2, 4), protocol=protocol)
    slope = torch.randn(head_of(cell).shape, generator=torch.Generator().manual_seed(1))

    def sloping(stage: Stage, batch: object) -> torch.Tensor:
        return (cell.model.head("a").weight * slope).sum() + 0.0 * sum(
            weight.sum() for weight in stage.trainable()
        )

    monkeypatch.setattr(Stage, "adam", sgd)
    monkeypatch.setattr(method, "loss", sloping)
    cell.stage(0)
    before = head_of(cell).detach().clone()
    cell.stage(1)
    with method.scoring(0):
        steps = (before - head_of(cell).detach())[:2]
    ratios = [steps / slope[:2], steps / slope[:2].sign()]  # SGD, Adam
    follows = any(r.mean() > 0 and torch.allclose(r, r.mean(), rtol=1e-3) for r in ratios)
    assert method.holds_head is not follows


def test_no_baseline_but_a_papers_own_leaves_the_loss_of_the_protocol() -> None:
    with_mask = {
        name
        for name in packaged_files("baselines")
        if read_baseline(name).settings.get("mask", False)
    }
    assert with_mask == {"l2p-paper"}
