"""EWC-LoRA against its formulas, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights
from helpers.checkpoints import make_checkpoint

from clbench.core.errors import SettingsError
from clbench.methods.lora import EWCLora
from clbench.tasks.task import Rows, Task
from clbench.training.protocol import Protocol

pytest.importorskip("peft")
QUERY = "backbone.encoder.layer.0.attention.self.query"
DOWN, UP, BASE = (f"{QUERY}.{end}.weight" for end in ("lora_A.task", "lora_B.task", "base_layer"))


def exact_fisher(cell: Cell, task: int, name: str) -> torch.Tensor:
    """Return the mean over a task's rows of the squared gradient of the loss for a weight."""
    stage = cell.open(task)
    weight = dict(cell.model.named_parameters())[name].requires_grad_(True)
    cell.model.eval()
    total = torch.zeros_like(weight)
    for row in range(12):
        loss = stage.loss(stage.data.batch(np.array([row]), stage.device))
        total += torch.autograd.grad(loss, weight)[0] ** 2
    weight.requires_grad_(False)
    return total / 12


def test_the_penalty_weighs_changes_of_the_product(folder: Path) -> None:
    """ΔW goes from 2·(1/2·1) = 1 to 2·(2·1) = 4 at [1, 0]: ½·10·5·(4 - 1)² = 225."""
    cell = Cell(folder, EWCLora(r=1, alpha=2, importance=10.0))
    parameters = dict(cell.model.named_parameters())
    cell.method.fisher = {BASE: torch.full((32, 32), 7.0)}
    cell.method.fisher[BASE][1, 0] = 5.0
    with torch.no_grad():
        parameters[DOWN].zero_()[0, 0] = 1.0
        parameters[UP][1, 0] = 0.5
        stage = cell.begin(1)
        parameters[UP][1, 0] = 2.0
    penalty = cell.method.penalty(stage)
    assert penalty is not None
    assert penalty.item() == pytest.approx(225.0)
    penalty.backward()
    # dB = λF(ΔW - ΔW*)·(alpha / r)·A' = 10·5·3·2·1, and dA = B'·10·5·3·2 with B = 2.
    for name, at, expected in ((UP, (1, 0), 300.0), (DOWN, (0, 0), 600.0)):
        gradient = torch.zeros_like(parameters[name])
        gradient[at] = expected
        torch.testing.assert_close(parameters[name].grad, gradient)


@pytest.mark.parametrize("gamma", [1.0, 0.25])
def test_the_fisher_is_that_of_the_whole_matrix(folder: Path, gamma: float) -> None:
    cell = Cell(folder, EWCLora(mode="empirical", gamma=gamma), heads=("a", "b", "c"))
    cell.stage(0)
    first = exact_fisher(cell, 0, BASE)
    torch.testing.assert_close(cell.method.fisher[BASE], first, rtol=1e-3, atol=1e-9)
    assert first.max() > 0
    cell.stage(1)
    expected = gamma * first + exact_fisher(cell, 1, BASE)
    torch.testing.assert_close(cell.method.fisher[BASE], expected, rtol=1e-3, atol=1e-9)
    kept = {name: value.clone() for name, value in cell.method.fisher.items()}
    cell.stage(2)  # after the last task, nothing is to be held
    assert all(torch.equal(cell.method.fisher[name], value) for name, value in kept.items())


def test_the_fisher_has_the_shape_of_the_weight(tmp_path: Path) -> None:
    """GPT-2 keeps its matrices transposed, and so are the additions to them."""
    cell = Cell(make_checkpoint("gpt2", tmp_path), EWCLora(importance=1e6))
    cell.stage(0)
    shapes = {v.shape for name, v in cell.method.fisher.items() if name.startswith("backbone.")}
    assert shapes == {(32, 96)}
    cell.stage(1)


@pytest.mark.parametrize(("heads", "held"), [(("a", "a"), True), (("a", "b"), False)])
def test_a_shared_head_is_held_too(folder: Path, heads: tuple[str, str], held: bool) -> None:
    cell = Cell(folder, EWCLora(importance=2.0), heads=heads)
    cell.stage(0)
    stage = cell.begin(1)
    penalty = cell.method.penalty(stage)
    assert penalty is not None
    assert penalty.item() == 0.0
    head = dict(cell.model.named_parameters())["heads.a.bias"]
    with torch.no_grad():
        head += 3.0
    penalty = cell.method.penalty(stage)
    assert penalty is not None
    # ½·2·Σ F·3²
    expected = 9.0 * float(cell.method.fisher["heads.a.bias"].sum()) if held else 0.0
    assert penalty.item() == pytest.approx(expected)
    assert (expected > 0) == held


def test_a_large_importance_preserves_the_outputs_of_earlier_tasks(folder: Path) -> None:
    moved = []
    for importance in (1e-6, 1e8):
        cell = Cell(folder, EWCLora(importance=importance, lr=5e-3))
        cell.stage(0)
        before = cell.scored(0)
        additions = {n: w for n, w in weights(cell).items() if "lora_" in n}
        cell.stage(1)
        now = weights(cell)
        assert any(not torch.equal(now[name], value) for name, value in additions.items())
        moved.append(float((cell.scored(0) - before).abs().mean()))
    assert moved[1] < 0.3 * moved[0]


@pytest.mark.parametrize(
    ("penalised", "heads", "delta", "head"),
    [
        ("all", ("a", "a"), True, True),
        ("head", ("a", "a"), False, True),
        ("head", ("a", "b"), False, False),
        ("delta", ("a", "a"), True, False),
    ],
)
def test_the_penalty_holds_the_parts_it_is_told_to(
    folder: Path, penalised: Any, heads: tuple[str, str], delta: bool, head: bool
) -> None:
    """Each part alone gives ½·λ·ΣF·3², and the whole their sum."""
    cell = Cell(folder, EWCLora(importance=2.0, penalised=penalised, alpha=8, r=8), heads=heads)
    cell.stage(0)
    expected = Cell(folder, EWCLora(importance=2.0, alpha=8, r=8), heads=heads)
    expected.stage(0)
    fisher = expected.method.fisher
    parameters = dict(cell.model.named_parameters())
    stage = cell.begin(1)
    with torch.no_grad():
        parameters["heads.a.bias"] += 3.0
        product = parameters[UP] @ parameters[DOWN]
        parameters[UP] *= 2.0
    total = 0.0
    if delta:  # ΔW became twice itself, so it moved by itself
        total += float((fisher[BASE] * product.square()).sum())
    if head:
        total += 9.0 * float(fisher["heads.a.bias"].sum())
    penalty = cell.method.penalty(stage)
    assert (0.0 if penalty is None else penalty.item()) == pytest.approx(total, rel=1e-4)
    assert (total > 0) == (delta or head)


def test_the_default_of_penalised_is_not_in_a_cell_of_earlier_versions() -> None:
    assert "penalised" not in EWCLora().settings()
    assert EWCLora(penalised="head").settings()["penalised"] == "head"


def test_holding_the_head_alone_needs_one() -> None:
    method = EWCLora(penalised="head")
    method.check_protocol(Protocol())
    with pytest.raises(SettingsError, match="no head to hold"):
        method.check_protocol(Protocol(head="language-model"))


def test_holding_the_head_alone_needs_tasks_that_share_one() -> None:
    rows = Rows.of(["a", "b"], None, [0, 1])
    first = Task("a", ("no", "yes"), ("accuracy",), rows, rows, head="a")
    second = replace(first, name="b", head="b")
    for penalised, tasks in (("head", [first, first]), ("head", [first]), ("all", [first, second])):
        EWCLora(penalised=penalised).check_tasks(tasks)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="each task has a head of its own"):
        EWCLora(penalised="head").check_tasks([first, second])
