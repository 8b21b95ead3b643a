from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cell import Cell, differ, weights

from clbench.errors import SettingsError
from clbench.methods.ewc import EWC, EWCOnline
from clbench.training.engine import train_stage

LAYER = "backbone.encoder.layer.1.output.dense.weight"
ALL = {"mode": "empirical", "examples": None}


def by_hand(cell: Cell, index: int) -> dict[str, torch.Tensor]:
    """Empirical Fisher of a stage's rows, one backward pass each."""
    stage = cell.open(index)
    cell.model.eval()
    parameters = dict(cell.model.named_parameters())
    fisher = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for i in range(12):
        cell.model.zero_grad()
        stage.loss(stage.data.batch(np.asarray([i]), stage.device)).backward()
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                fisher[name] += parameter.grad.square() / 12
    cell.model.zero_grad()
    return fisher


@pytest.mark.parametrize(("half", "factor"), [(True, 1.0), (False, 2.0)])
def test_the_pull_is_lambda_fisher_times_the_distance(
    folder: Path, half: bool, factor: float
) -> None:
    method = EWC(importance=30.0, half=half, **ALL)
    cell = Cell(folder, method)
    cell.stage(0)
    fisher, anchor = by_hand(cell, 0), weights(cell)
    stage = cell.open(1)
    stage.total_steps = 6
    method.before_stage(stage)
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=stage.rng("test")))
    method.edit_gradients(stage)
    moved = weights(cell)
    for name, parameter in cell.model.backbone.named_parameters(prefix="backbone"):
        off = (moved[name] - anchor[name]).double().numpy()
        wanted = factor * 30.0 * fisher[name].double().numpy() * off
        scale = float(np.abs(wanted).max()) + 1e-12
        np.testing.assert_allclose(parameter.grad, wanted, rtol=2e-4, atol=1e-5 * scale)
    assert cell.model.head("t0").weight.grad is None  # no later stage trains it
    assert stage.log["penalty"][0][1] > 0


@pytest.mark.parametrize("kind", [EWC, EWCOnline])
@pytest.mark.parametrize("heads", [("a", "b", "c"), ("a", "a", "a"), ("a", "b", "a")])
def test_differs_repeats_and_goes_on(folder: Path, kind: Any, heads: tuple[str, ...]) -> None:
    from clbench.methods.vanilla import Vanilla

    plain = Cell(folder, Vanilla(), heads=heads).run()
    first = Cell(folder, kind(importance=1e4, examples=5), heads=heads).run()
    assert differ(first, plain)
    whole = Cell(folder, kind(importance=1e4, examples=5), heads=heads)
    for index in (0, 1):
        stage = whole.open(index)
        train_stage(stage, whole.method)
        if index == 1:  # kept before it consolidates, and taken up by another process
            state = {key: _copy(value) for key, value in whole.method.state().items()}
            late = Cell(folder, kind(importance=1e4, examples=5), heads=heads)
            late.model.load_state_dict(whole.model.state_dict())
            late.method.load_state(state)
            late.method.after_stage(late.open(1))
        whole.method.after_stage(stage)
    assert not [key for key in state if key.startswith("_")]
    late.stage(2)
    assert not differ(late, first)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_several_penalties_are_one(folder: Path) -> None:
    method = EWC(importance=2.0, **ALL)
    cell = Cell(folder, method, heads=("a", "b", "c"))
    parts = []
    for index in (0, 1):
        cell.stage(index)
        parts.append((by_hand(cell, index)[LAYER].double(), weights(cell)[LAYER].double()))
    now = weights(cell)[LAYER].double() + 0.1
    wanted = sum(fisher * (now - anchor) for fisher, anchor in parts)
    merged = method.fisher[LAYER].double() * (now - method.anchor[LAYER].double())
    torch.testing.assert_close(merged, wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max()))


def test_online_fades_and_has_one_anchor(folder: Path) -> None:
    method = EWCOnline(gamma=0.25, **ALL)
    cell = Cell(folder, method, heads=("a", "b", "c"))
    cell.stage(0)
    first = by_hand(cell, 0)[LAYER]
    cell.stage(1)
    second = by_hand(cell, 1)[LAYER]
    wanted = 0.25 * first + second
    torch.testing.assert_close(
        method.fisher[LAYER], wanted, rtol=1e-3, atol=1e-5 * float(wanted.max())
    )
    assert torch.equal(method.anchor[LAYER], weights(cell)[LAYER])
    kept = method.fisher[LAYER].clone()
    cell.stage(2)
    assert torch.equal(method.fisher[LAYER], kept)  # nothing comes after the last stage


def test_online_fades_a_head_that_a_task_has_not(folder: Path) -> None:
    method = EWCOnline(gamma=0.25, **ALL)
    cell = Cell(folder, method, heads=("a", "b", "a", "b"))
    head = "heads.a.weight"
    cell.stage(0)
    first = by_hand(cell, 0)[head]
    assert float(first.max()) > 0
    cell.stage(1)
    torch.testing.assert_close(method.fisher[head], 0.25 * first, rtol=1e-3, atol=1e-9)
    cell.stage(2)
    wanted = 0.0625 * first + by_hand(cell, 2)[head]
    torch.testing.assert_close(method.fisher[head], wanted, rtol=1e-3, atol=1e-9)
    assert torch.equal(method.anchor[head], weights(cell)[head])


def test_the_first_stage_is_vanillas_and_later_rows_are_not_read(folder: Path) -> None:
    assert not EWC().acts_in(0)
    assert EWC().acts_in(1)
    assert not EWC.keeps_rows


def test_a_strong_pull_holds(folder: Path) -> None:
    def moved(importance: float) -> float:
        cell = Cell(folder, EWC(importance=importance, **ALL))
        cell.stage(0)
        anchor = cell.context.snapshot()
        fisher = cell.method.fisher  # type: ignore[attr-defined]
        cell.stage(1)
        now = cell.context.snapshot()
        return sum(float((fisher[n] * (now[n] - anchor[n]).square()).sum()) for n in now)

    assert moved(1e6) < 0.5 * moved(1e-6)


def test_settings() -> None:
    with pytest.raises(SettingsError, match="importance"):
        EWC(importance=0.0)
    with pytest.raises(SettingsError, match="mode"):
        EWC(mode="exact")
    with pytest.raises(SettingsError, match="gamma"):
        EWCOnline(gamma=1.5)
