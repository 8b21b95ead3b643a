"""SMART's terms against transcriptions in NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell
from torch import Tensor

from clbench.core.errors import SettingsError
from clbench.methods.adversarial import Smart, divergence, move_noise
from clbench.training.device import Precision
from clbench.training.engine import train_stage
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage


def softmax(logits: Any) -> Any:
    powers = np.exp(logits)
    return powers / powers.sum(-1, keepdims=True)


def test_divergence_is_the_symmetric_kl_or_the_squared_difference() -> None:
    first, second = np.random.default_rng(0).normal(size=(2, 6, 3))
    p, q = softmax(first), softmax(second)
    expected = (p * np.log(p / q) + q * np.log(q / p)).sum(-1).mean()
    tensors = torch.tensor(first), torch.tensor(second)
    np.testing.assert_allclose(divergence(*tensors, regression=False).item(), expected, rtol=1e-12)
    squared = ((first - second) ** 2).mean()
    np.testing.assert_allclose(divergence(*tensors, regression=True).item(), squared, rtol=1e-12)


def test_noise_moves_up_and_stays_in_its_box() -> None:
    rng = np.random.default_rng(0)
    noise, gradient = rng.normal(size=(2, 4, 3, 5))
    gradient[2] = 0.0
    moved = move_noise(torch.tensor(noise), torch.tensor(gradient), 0.5, 1.2).numpy()
    for i in range(4):
        largest = np.abs(gradient[i]).max() or 1.0
        expected = np.clip(noise[i] + 0.5 * gradient[i] / largest, -1.2, 1.2)
        np.testing.assert_allclose(moved[i], expected, rtol=1e-12)


def test_unit_projection_scales_the_noise_of_each_token_to_1() -> None:
    rng = np.random.default_rng(0)
    noise, gradient = rng.normal(size=(2, 4, 3, 5))
    moved = move_noise(torch.tensor(noise), torch.tensor(gradient), 0.5, None).numpy()
    raised = noise + 0.5 * gradient / np.abs(gradient).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(moved, raised / np.abs(raised).max(-1, keepdims=True), rtol=1e-12)


def test_noise_of_choices_is_scaled_by_row_and_by_token() -> None:
    rng = np.random.default_rng(0)
    noise, gradient = rng.normal(size=(2, 4, 2, 3, 5))
    moved = move_noise(torch.tensor(noise), torch.tensor(gradient), 0.5, None).numpy()
    for row, shift, result in zip(noise, gradient, moved, strict=True):
        raised = row + 0.5 * shift / np.abs(shift).max()
        np.testing.assert_allclose(result, raised / np.abs(raised).max(-1, keepdims=True))


def test_terms_are_0_at_unchanged_weights_and_small_under_small_noise(folder: Path) -> None:
    """All passes of a step share their dropout masks, so dropout adds nothing to the terms."""
    cell = Cell(folder, Smart())
    _, trace = cell.stage(0)
    assert trace.curves["proximity"][0] == [0.0, 0.0]
    # The warm-up begins at a rate of 0, so the second step still has the same weights.
    assert all(value > 0 for _, value in trace.curves["proximity"][2:])
    # With other dropout masks in each pass it would be about 0.1.
    assert all(0 < value < 1e-5 for _, value in trace.curves["smoothness"])


def test_all_passes_over_a_part_of_a_batch_share_their_dropout_masks(folder: Path) -> None:
    cell = Cell(folder, Smart())
    stage = cell.begin(0)
    cell.model.train()
    terms: list[float] = []
    stage.sample = lambda name, value: terms.append(value.item())  # type: ignore[method-assign]
    stage.restart_dropout()  # as the engine does once a step
    for stage.part in range(3):
        cell.method.loss(stage, stage.data.batch(np.arange(4), stage.device))
    assert len(terms) == 6
    assert max(terms) < 1e-5


def test_moved_noise_changes_outputs_more_than_drawn_noise(folder: Path) -> None:
    smoothness = []
    for step_size in (1e-9, 0.1):
        method = Smart(mu=0.0, epsilon=0.05, sigma=0.05, step_size=step_size)
        _, trace = Cell(folder, method).stage(0)
        smoothness.append(trace.curves["smoothness"][0][1])
    assert smoothness[1] > 2 * smoothness[0] > 0


class Spy(Smart):
    """Records a weight and its moving average, in float64, after every step."""

    def after_step(self, stage: Stage) -> None:
        super().after_step(stage)
        self._steps = [*getattr(self, "_steps", []), (self.weight(stage), self.average())]

    def weight(self, stage: Stage) -> Any:
        return stage.model.heads["t0"].weight.detach().double().numpy().copy()

    def average(self) -> Any:
        return self._average["heads.t0.weight"].double().numpy().copy()


def test_the_moving_average_uses_both_momenta(folder: Path) -> None:
    cell = Cell(folder, Spy(momentum=0.5, late_momentum=0.9))
    stage = cell.open(0)
    stage.protocol = stage.protocol.model_copy(update={"steps": 30})
    slow = cell.model.heads["t0"].weight.detach().double().numpy().copy()
    train_stage(stage, cell.method)
    steps = cell.method._steps  # type: ignore[attr-defined]
    assert len(steps) == stage.total_steps == 30
    for number, (weight, average) in enumerate(steps, 1):
        beta = 0.5 if number <= 3 else 0.9
        slow = beta * slow + (1 - beta) * weight
        np.testing.assert_allclose(average, slow, rtol=1e-4, atol=1e-7)


def test_the_loss_adds_the_proximal_term(folder: Path) -> None:
    cell = Cell(folder, Smart(lambda_s=0.0, mu=2.0))
    stage = cell.begin(0)
    batch = stage.data.batch(np.arange(4), stage.device)
    cell.model.eval()
    then = stage.logits(batch).detach().double().numpy()
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.mul_(1.1)
    now = stage.logits(batch).detach().double().numpy()
    p, q = softmax(now), softmax(then)
    expected = stage.loss(batch).item() + 2.0 * ((p - q) * np.log(p / q)).sum(-1).mean()
    np.testing.assert_allclose(cell.method.loss(stage, batch).item(), expected, rtol=1e-5)


def test_terms_are_computed_in_float32(folder: Path) -> None:
    def first(precision: str) -> Tensor:
        cell = Cell(folder, Smart())
        stage = replace(cell.open(0), precision=Precision(precision, "cpu"), total_steps=6)
        cell.method.before_stage(stage)
        stage.restart_dropout()
        return cell.method.loss(stage, stage.data.batch(np.arange(4), stage.device)).detach()

    assert torch.equal(first("float32"), first("bf16"))


def test_weights_in_bf16_are_refused() -> None:
    Smart().check_protocol(Protocol(head="language-model"))
    with pytest.raises(SettingsError, match=r"moving average are lost in bf16. Set weights = "):
        Smart().check_protocol(Protocol(head="language-model", weights="bf16"))


@pytest.mark.parametrize(
    ("settings", "step"),
    [({"ascents": 2}, 0), ({"mu": 0.0}, 1), ({"lambda_s": 0.0}, 0), ({"projection": "unit"}, 0)],
)
def test_settings_change_the_loss_from_a_step_on(
    folder: Path, settings: dict[str, Any], step: int
) -> None:
    """In the first step, the moving average is the weights themselves."""

    update = {"steps": 3, "curve_points": 3, "schedule": "constant", "warmup": 0.0}

    def losses(**other: Any) -> list[float]:
        method = Smart(epsilon=0.1, step_size=0.1, **other)
        cell = Cell(folder, method, protocol=PROTOCOL.model_copy(update=update))
        return cell.stage(0)[1].curves["loss"]

    same = [a == b for a, b in zip(losses(**settings), losses(), strict=True)]
    assert same == [n < step for n in range(3)]
