"""LP-FT: the head alone, then everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, weights

from clbench.methods.by_depth import LpFt
from clbench.training.stage import Stage

FLAT = PROTOCOL.model_copy(update={"warmup": 0.0, "schedule": "constant"})


class Watched(LpFt):
    """Keeps the weights after every step, the rates, and whether the backbone has dropout."""

    def before_stage(self, stage: Stage) -> None:
        self.seen: list[dict[str, Any]] = []

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> Any:
        self._optimizer = super().optimizer(stage, groups)
        return self._optimizer

    def after_step(self, stage: Stage) -> None:
        self.seen.append(
            {
                "weights": {n: p.detach().clone() for n, p in stage.model.named_parameters()},
                "rate": self._optimizer.param_groups[0]["lr"],
                "dropout": stage.model.backbone.training,
            }
        )


@pytest.mark.parametrize(("probe", "split"), [(0.5, (3, 3)), (0.01, (1, 5)), (0.99, (5, 1))])
def test_both_phases_share_the_steps_of_the_stage(
    folder: Path, probe: float, split: tuple[int, int]
) -> None:
    method = LpFt(probe=probe)
    cell = Cell(folder, method)
    phases = method.phases(cell.open(0))
    assert tuple(phase.steps for phase in phases) == split
    _, trace = cell.stage(0)
    assert trace.steps == 6


def test_a_stage_of_one_step_trains_everything(folder: Path) -> None:
    cell = Cell(folder, LpFt(), protocol=PROTOCOL.model_copy(update={"steps": 1}))
    _, trace = cell.stage(0)
    assert trace.steps == 1
    assert cell.moved() > 0


def test_the_head_is_fitted_on_frozen_features_first(folder: Path) -> None:
    method = Watched(probe_lr=0.02)
    cell = Cell(folder, method, protocol=FLAT)
    before = weights(cell)
    cell.stage(1)
    assert [seen["rate"] for seen in method.seen] == [0.02] * 3 + [FLAT.lr] * 3
    assert [seen["dropout"] for seen in method.seen] == [False] * 3 + [True] * 3
    for step, seen in enumerate(method.seen):
        moved = {n for n, value in seen["weights"].items() if not torch.equal(value, before[n])}
        heads = {"heads.t1.weight", "heads.t1.bias"}
        assert (moved == heads) if step < 3 else (moved > heads)
    assert all(parameter.requires_grad for parameter in cell.model.parameters())


def test_the_first_step_is_that_of_logistic_regression(folder: Path) -> None:
    """Adam's first step moves each weight by the rate, against the sign of its gradient."""
    method = Watched(probe_lr=0.02)
    cell = Cell(folder, method, protocol=FLAT)
    used = []
    own = method.loss
    method.loss = lambda stage, batch: used.append(batch) or own(stage, batch)  # type: ignore
    cell.model.eval()
    start = weights(cell)
    cell.stage(1)
    batch = used[0]
    fresh = Cell(folder, LpFt())
    fresh.model.eval()
    with torch.no_grad():
        features = fresh.model.features(batch.inputs).double().numpy()
    logits = features @ start["heads.t1.weight"].double().numpy().T
    powers = np.exp(logits)
    error = powers / powers.sum(1, keepdims=True) - np.eye(2)[batch.labels.numpy()]
    first = method.seen[0]["weights"]
    for name, gradient in (("weight", error.T @ features), ("bias", error.sum(0))):
        change = (first[f"heads.t1.{name}"] - start[f"heads.t1.{name}"]).numpy()
        np.testing.assert_allclose(change, -0.02 * np.sign(gradient), rtol=1e-3)


def test_frozen_layers_stay_frozen(folder: Path) -> None:
    cell = Cell(folder, LpFt())
    cell.model.backbone.encoder.layer[0].requires_grad_(False)
    cell.run()
    layer = cell.model.backbone.encoder.layer[0]
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert cell.moved() > 0
