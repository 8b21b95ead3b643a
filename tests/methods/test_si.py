"""Synaptic intelligence against a transcription in float64 NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, differ, weights

from clbench.methods.base import Vanilla
from clbench.methods.synapses import SI
from clbench.training.stage import Stage

Array = np.ndarray[Any, Any]
WATCHED = ("backbone.encoder.layer.2.output.dense.weight", "backbone.embeddings.LayerNorm.bias")


def double(value: torch.Tensor) -> Array:
    return value.detach().double().numpy().copy()


class Spy(SI):
    """Records the gradient of the loss, the pull, and the weights before and after each step."""

    def before_stage(self, stage: Stage) -> None:
        super().before_stage(stage)
        self._steps: dict[str, list[tuple[Array, Array, Array, Array]]] = {n: [] for n in WATCHED}

    def edit_gradients(self, stage: Stage) -> None:
        every = dict(stage.model.named_parameters())
        self._now = {n: (double(every[n]), double(every[n].grad)) for n in WATCHED}
        super().edit_gradients(stage)
        self._edited = {n: double(every[n].grad) for n in WATCHED}

    def after_step(self, stage: Stage) -> None:
        every = dict(stage.model.named_parameters())
        for n in WATCHED:
            before, gradient = self._now[n]
            pull = self._edited[n] - gradient
            self._steps[n].append((before, gradient, pull, double(every[n])))
        super().after_step(stage)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_importance_and_pull_equal_a_transcription(folder: Path, clip_norm: float | None) -> None:
    protocol = PROTOCOL.model_copy(update={"clip_norm": clip_norm})
    method = Spy(c=1e4, xi=1e-3)
    cell = Cell(folder, method, heads=("a", "b", "c"), protocol=protocol)
    importance = dict.fromkeys(WATCHED, np.zeros(()))
    clipped = False
    for index in range(2):
        cell.stage(index)
        for name in WATCHED:
            steps = method._steps[name]
            start, end = steps[0][0], steps[-1][3]
            omega = -sum(gradient * (after - before) for before, gradient, _, after in steps)
            for before, _, pull, _ in steps:
                expected = 2 * 1e4 * importance[name] * (before - start)
                np.testing.assert_allclose(pull, expected, atol=1e-6 * (1 + np.abs(expected).max()))
            raw = importance[name] + omega / ((end - start) ** 2 + 1e-3)
            importance = {**importance, name: np.maximum(raw, 0.0)}
            actual = double(method.importance[name])
            np.testing.assert_allclose(
                actual, importance[name], rtol=1e-3, atol=1e-5 * importance[name].max()
            )
            clipped = clipped or (raw < 0).any()
    assert clipped
    assert any(np.abs(pull).max() > 1e-3 for _, _, pull, _ in method._steps[WATCHED[0]])


def test_the_first_stage_equals_vanilla(folder: Path) -> None:
    pulled, plain = Cell(folder, SI(c=1e6)), Cell(folder, Vanilla())
    pulled.stage(0)
    plain.stage(0)
    assert not differ(pulled, plain)
    pulled.stage(1)
    plain.stage(1)
    assert differ(pulled, plain)


def test_a_strong_pull_holds_important_weights(folder: Path) -> None:
    moved = []
    for c in (1e-6, 1e5):
        cell = Cell(folder, SI(c=c))
        cell.stage(0)
        importance = dict(cell.method.importance)  # type: ignore[attr-defined]
        anchor = cell.context.snapshot()
        _, trace = cell.stage(1)
        now = weights(cell)
        terms = [(importance[n] * (now[n] - anchor[n]).square()).sum() for n in anchor]
        moved.append(float(torch.stack(terms).sum()))
        assert trace.curves["penalty"][-1][1] > 0
    assert moved[1] < 0.5 * moved[0]


def test_a_shared_head_is_held_and_a_new_one_is_not(folder: Path) -> None:
    cell = Cell(folder, SI(), heads=("a", "a", "b"))
    cell.stage(0)
    assert "heads.a.weight" in cell.method.importance  # type: ignore[attr-defined]
    cell.begin(1)
    for parameter in cell.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        cell.model.head("a").weight.add_(1.0)
    cell.method._pull.edit_gradients()  # type: ignore[attr-defined]
    assert cell.model.head("a").weight.grad.abs().max() > 0
    assert not cell.model.head("b").weight.grad.any()


def test_only_importance_is_kept_between_stages(folder: Path) -> None:
    cell = Cell(folder, SI())
    cell.stage(0)
    assert set(cell.method.state()) == {"importance"}
    names = set(weights(cell)) - {"heads.t1.weight", "heads.t1.bias"}
    assert set(cell.method.state()["importance"]) == names
