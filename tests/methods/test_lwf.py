"""Learning without forgetting against the formulas, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights

from clbench.methods.distillation import LwF, distillation
from clbench.training.device import Precision


def softened(logits: Any, temperature: float) -> Any:
    powers = np.exp(logits / temperature)
    return powers / powers.sum(-1, keepdims=True)


def test_distillation_is_the_divergence_of_softened_outputs() -> None:
    rng = np.random.default_rng(1)
    now, then = rng.normal(size=(2, 5, 3)) * 2
    target, output = softened(then, 2.0), softened(now, 2.0)
    expected = (target * (np.log(target) - np.log(output))).sum(-1).mean()
    leaf = torch.tensor(now, requires_grad=True)
    loss = distillation(leaf, torch.tensor(then), temperature=2.0, regression=False)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    # The gradient is that of the paper's cross-entropy: (softmax(z/T) - target)/T a row.
    loss.backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), (output - target) / 2.0 / 5, rtol=1e-9)


def test_distillation_is_the_squared_difference_for_regression() -> None:
    now, then = torch.tensor([[1.0], [2.5]]), torch.tensor([[0.0], [2.0]])
    assert float(distillation(now, then, temperature=2.0, regression=True)) == 0.625


@pytest.mark.parametrize("regression", [False, True])
def test_the_distance_of_k_choices_is_their_mean(regression: bool) -> None:
    now, then = torch.randn(2, 5, 4, 3, generator=torch.Generator().manual_seed(0))
    of_rows, of_choices = (
        distillation(first, second, temperature=2.0, regression=regression)
        for first, second in ((now, then), (now.view(20, 3), then.view(20, 3)))
    )
    torch.testing.assert_close(of_rows, of_choices)


def test_the_loss_adds_a_term_for_every_earlier_head(folder: Path) -> None:
    cell = Cell(folder, LwF(temperature=3.0, weight=0.5), heads=("a", "b", "c"))
    stage = cell.begin(2)
    batch = stage.data.batch(np.array([7, 2, 4]), stage.device)
    cell.model.eval()
    then = {head: stage.logits(batch, head=head).detach().double().numpy() for head in "ab"}
    torch.testing.assert_close(cell.method.loss(stage, batch), stage.loss(batch))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    expected = stage.loss(batch).item()
    for head, targets in then.items():
        now = stage.logits(batch, head=head).detach().double().numpy()
        target, output = softened(targets, 3.0), softened(now, 3.0)
        expected += 0.5 * (target * np.log(target / output)).sum(-1).mean()
    assert cell.method.loss(stage, batch).item() > stage.loss(batch).item() + 1e-4
    np.testing.assert_allclose(cell.method.loss(stage, batch).item(), expected, rtol=1e-5)


def test_heads_compute_in_float32_under_bf16(folder: Path) -> None:
    cell = Cell(folder, LwF(weight=1e4))
    cell.context.precision = Precision("bf16", "cpu")
    stage = cell.begin(1)
    batch = stage.data.batch(np.arange(4), stage.device)
    cell.model.eval()
    own = stage.loss(batch).item()
    # Targets equal to the present outputs give no divergence, unless the loss rounds a head's.
    cell.method._targets["t0"][:4] = stage.logits(batch, head="t0").detach()
    assert cell.method.loss(stage, batch).item() == own


def test_earlier_heads_are_trained_too(folder: Path) -> None:
    cell = Cell(folder, LwF())
    cell.stage(0)
    before = weights(cell)
    stage, _ = cell.stage(1)
    assert not torch.equal(weights(cell)["heads.t0.weight"], before["heads.t0.weight"])
    assert stage.log["distillation"][-1][1] > 0


def test_a_large_weight_preserves_the_outputs(folder: Path) -> None:
    moved = []
    for weight in (1e-6, 100.0):
        cell = Cell(folder, LwF(weight=weight))
        cell.stage(0)
        stage = cell.open(1)
        batch = stage.data.batch(np.arange(12), stage.device)
        cell.model.eval()
        before = stage.logits(batch, head="t0").detach()
        cell.stage(1)
        cell.model.eval()
        moved.append(float((stage.logits(batch, head="t0").detach() - before).abs().mean()))
    assert moved[1] < 0.5 * moved[0]


def test_all_earlier_heads_are_recorded_in_one_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(folder, LwF(), heads=("a", "b", "c"))
    cell.stage(0)
    cell.stage(1)
    stage = cell.open(2)
    alone = {head: stage.outputs(replace(stage.data, head=head)) for head in ("a", "b")}
    passes, features = [], cell.model.features
    monkeypatch.setattr(cell.model, "features", lambda *a: passes.append(1) or features(*a))
    cell.method.before_stage(stage)
    assert len(passes) == 1
    for head, outputs in alone.items():
        np.testing.assert_allclose(cell.method._targets[head].numpy(), outputs, rtol=1e-5)
