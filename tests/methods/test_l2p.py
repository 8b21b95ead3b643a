"""L2P: which prompts a row selects, and what is added to the loss, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, changed, weights

from clbench.methods.prompts import L2P
from clbench.training.device import Precision
from clbench.training.stage import Stage


def inputs_of(cell: Cell, rows: list[int]) -> dict[str, torch.Tensor]:
    return cell.tasks[0].batch(np.array(rows), cell.context.device).inputs


def test_rows_select_the_nearest_keys_and_pull_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries 3·e0 + 4·e1 and -e0 have cosines (.6, .8, -.6) and (-1, 0, 1) with the keys."""
    cell = Cell(folder, L2P(pool=3, length=2, select=2, weight=0.5))
    queries = torch.zeros(2, 32)
    queries[0, 0], queries[0, 1], queries[1, 0] = 3.0, 4.0, -1.0
    monkeypatch.setattr(cell.model, "pooled", lambda inputs, embeds=None: queries)
    with torch.no_grad():
        cell.model.keys.zero_()
        cell.model.keys[0, 0], cell.model.keys[1, 1], cell.model.keys[2, 0] = 2.0, 5.0, -1.0
        cell.model.prompts.copy_(torch.arange(3.0)[:, None, None].expand(3, 2, 32))
    prompts = cell.method.prompts(cell.model, inputs_of(cell, [0, 1]))
    assert prompts.shape == (2, 4, 32)
    assert prompts[:, :, 0].tolist() == [[1.0, 1.0, 0.0, 0.0], [2.0, 2.0, 1.0, 1.0]]
    stage = cell.open(0)
    cell.model.eval()
    batch = stage.data.batch(np.array([0, 1]), stage.device)
    loss = cell.method.loss(stage, batch)
    # ½ · mean of (1 - .8) + (1 - .6) and (1 - 1) + (1 - 0)
    assert (loss - stage.loss(batch)).item() == pytest.approx(0.5 * (0.6 + 1.0) / 2)
    loss.backward()
    # For row 0 and key 0, d(1 - cos)/dk = -(q/|q| - cos·k/|k|)/|k| = (0, -.8)/2.
    assert cell.model.keys.grad[0, :2].tolist() == pytest.approx([0.0, 0.5 * 0.5 * -0.4])


def test_keys_that_any_part_of_a_batch_selects_are_pulled(folder: Path) -> None:
    gradients = []

    class Kept(L2P):
        def edit_gradients(self, stage: Stage) -> None:
            gradients.append(stage.model.get_parameter("keys").grad.clone())

    for count in (1, 4):
        update = {"steps": 1, "accumulation": count}
        Cell(folder, Kept(), protocol=PROTOCOL.model_copy(update=update)).stage(0)
    assert gradients[0].any()
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mask", [True, False])
def test_classes_of_other_tasks_are_left_out_of_the_loss(folder: Path, mask: bool) -> None:
    """Where all rows of a task have class 0, only class 0 competes, so nothing is to be learned."""
    cell = Cell(folder, L2P(mask=mask), heads=("a", "a"))
    data = cell.tasks[1]
    rows = replace(data.rows, labels=np.zeros_like(data.rows.labels))
    cell.tasks[1] = replace(data, rows=rows)
    stage = cell.begin(1)
    (data,) = cell.method.training_data(stage)
    batch = data.batch(np.arange(12), cell.context.device)
    loss = cell.method.loss(stage, batch)
    loss.backward()
    loss = loss - cell.method._distance
    gradient = cell.model.head("a").weight.grad
    if mask:
        assert loss.item() == pytest.approx(0.0, abs=1e-6)
        assert not gradient.any()
    else:
        logits = stage.logits(batch)
        expected = (logits.logsumexp(1) - logits[:, 0]).mean()
        assert loss.item() == pytest.approx(expected.item())
        assert gradient[1].any()


def test_only_the_pool_and_the_head_are_trained(folder: Path) -> None:
    cell = Cell(folder, L2P(), heads=("a", "b"))
    before = weights(cell)
    cell.stage(0)
    moved = changed(before, cell)
    assert moved == {"keys", "prompts", "heads.a.weight", "heads.a.bias"}


def test_a_row_selects_for_itself(folder: Path) -> None:
    cell = Cell(folder, L2P(pool=8, select=2)).run()
    cell.model.eval()
    with torch.no_grad():
        cell.model.keys.copy_(torch.randn(8, 32, generator=torch.Generator().manual_seed(0)))
        cell.model.prompts.mul_(50.0)
        together = cell.model(inputs_of(cell, list(range(12))), "t0")
        alone = torch.cat([cell.model(inputs_of(cell, [row]), "t0") for row in range(12)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_training_pulls_the_selected_keys(folder: Path) -> None:
    protocol = PROTOCOL.model_copy(update={"epochs": 10, "lr": 1e-2})
    cell = Cell(folder, L2P(), protocol=protocol, heads=("a",))
    stage, _ = cell.stage(0)
    distances = [value for _, value in stage.log["key_distance"]]
    assert distances[-1] < 0.5 * distances[0]


def test_prompts_act_on_the_outputs(folder: Path) -> None:
    cell = Cell(folder, L2P())
    cell.model.eval()
    with torch.no_grad():
        before = cell.model(inputs_of(cell, [0, 1]), "t0")
        noise = torch.randn(10, 5, 32, generator=torch.Generator().manual_seed(0))
        cell.model.prompts.copy_(noise)
        assert not torch.allclose(cell.model(inputs_of(cell, [0, 1]), "t0"), before, atol=1e-3)


def test_similarities_are_exact_under_bf16(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cosines of 0.9992 and 0.9998 are one number in bfloat16."""
    cell = Cell(folder, L2P(pool=2, length=1, select=1))
    query = torch.zeros(1, 32)
    query[0, 0] = 1.0
    monkeypatch.setattr(cell.model, "pooled", lambda inputs, embeds=None: query)
    with torch.no_grad():
        cell.model.keys.zero_()
        cell.model.keys[:, 0] = 1.0
        cell.model.keys[:, 1] = torch.tensor([0.04, 0.02])
        cell.model.prompts.copy_(torch.arange(2.0)[:, None, None].expand(2, 1, 32))
    with Precision("bf16", "cpu").autocast():
        prompts = cell.method.prompts(cell.model, inputs_of(cell, [0]))
    assert prompts[0, 0, 0] == 1.0
