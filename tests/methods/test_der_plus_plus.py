from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cell import Cell

from clbench.methods.replay import DerPlusPlus


def test_loss_is_the_batch_plus_alpha_outputs_plus_beta_labels(folder: Path) -> None:
    method = DerPlusPlus(memory=12, recall=12, alpha=0.3, beta=0.7)
    cell = Cell(folder, method)
    cell.stage(0)
    stage = cell.open(1)
    stage.model.eval()
    with torch.no_grad():
        stage.model.head("t0").weight.mul_(1.5)
        batch = next(iter(stage.batches("b")))
        loss = method.loss(stage, batch)
        entry = method.kept[0]
        old = cell.tasks[0].batch(entry["positions"], stage.device)
        now = stage.logits(old).double().numpy()
        then = entry["outputs"].double().numpy()
        labels = old.labels.numpy()
        ce = np.mean(np.log(np.exp(now).sum(1)) - now[np.arange(12), labels])
        expected = float(stage.loss(batch)) + 0.3 * np.mean((now - then) ** 2) + 0.7 * ce
    assert np.abs(now - then).max() > 1e-3
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_stored_outputs_are_computed_without_dropout_when_the_stage_ends(folder: Path) -> None:
    method = DerPlusPlus(memory=5)
    cell = Cell(folder, method)
    stage, _ = cell.stage(0)
    rows = cell.tasks[0].batch(method.kept[0]["positions"], stage.device)
    stage.model.eval()
    with torch.no_grad():
        expected = stage.logits(rows)
    torch.testing.assert_close(method.kept[0]["outputs"], expected)
