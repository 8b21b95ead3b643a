"""SI and MAS against cases worked out by hand and a transcription in float64 NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, differ, weights
from helpers.checkpoints import make_checkpoint

from clbench.methods.base import Method, Vanilla
from clbench.methods.synapses import MAS, SI, output_sensitivity, squared_norms
from clbench.training.stage import Stage

Array = np.ndarray[Any, Any]
WATCHED = ("backbone.encoder.layer.2.output.dense.weight", "backbone.embeddings.LayerNorm.bias")


def double(value: torch.Tensor) -> Array:
    return value.detach().double().numpy().copy()


def one_by_one(
    stage: Stage, weights: dict[str, torch.nn.Parameter], rows: Array
) -> dict[str, torch.Tensor]:
    """Return sums of absolute gradients, by one backward pass for each row."""
    stage.model.eval()
    totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for row in rows:
        norm = squared_norms(stage.model, stage.data.batch(np.array([row]), stage.device)).sum()
        gradients = torch.autograd.grad(norm, list(weights.values()), allow_unused=True)
        for total, gradient in zip(totals.values(), gradients, strict=True):
            if gradient is not None:
                total += gradient.abs()
    return totals


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_path_integral_keeps_small_steps(folder: Path, dtype: torch.dtype) -> None:
    """A bias that steps 1000 times by ±2⁻⁸ along a gradient of ∓1/2 ends where it began.

    ω is 1000/512, and Ω = ω/ξ. In bfloat16 the sum would end at 1/2.
    """
    method = SI(xi=1.0)
    cell = Cell(folder, method)
    cell.model.to(dtype)
    name = WATCHED[1]
    bias = dict(cell.model.named_parameters())[name]
    bias.data.fill_(0.5)
    stage = cell.begin(0)
    stage.total_steps = 1000
    for step in range(1000):
        stage.step = step
        direction = -1.0 if step % 2 else 1.0
        bias.grad = torch.full_like(bias, -0.5 * direction)
        method.edit_gradients(stage)
        bias.data.add_(direction * 2.0**-8)
        method.after_step(stage)
    expected = torch.full(bias.shape, 1000 / 512)
    torch.testing.assert_close(method.importance[name], expected)


def test_sensitivity_of_a_dense_head_equals_the_formula(folder: Path) -> None:
    """For f = Wh + b the gradient of ‖f‖² is 2·f·hᵀ with respect to W and 2·f to b."""
    cell = Cell(folder, MAS())
    stage = cell.open(0)
    rows = np.arange(12)
    sensitivity = output_sensitivity(stage, rows)
    with torch.no_grad():
        features = [cell.model.features(stage.data.batch(rows[i : i + 1], stage.device).inputs)
                    for i in rows]  # fmt: skip
    h = torch.cat(features).double().numpy()
    head = cell.model.head("t0")
    f = h @ head.weight.detach().double().numpy().T + head.bias.detach().double().numpy()
    weight = np.abs(2 * f[:, :, None] * h[:, None, :]).mean(0)
    np.testing.assert_allclose(sensitivity["heads.t0.weight"].numpy(), weight, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(
        sensitivity["heads.t0.bias"].numpy(), np.abs(2 * f).mean(0), rtol=1e-4, atol=1e-7
    )
    # The absolute value of the mean would be another, smaller number.
    assert np.abs((2 * f).mean(0)).sum() < 0.999 * np.abs(2 * f).mean(0).sum()


@pytest.mark.parametrize("kind", ["albert", "gpt2", "deberta-v2"])
def test_sensitivity_equals_one_backward_pass_per_row(tmp_path: Path, kind: str) -> None:
    cell = Cell(make_checkpoint(kind, tmp_path), MAS())
    stage = cell.open(0)
    rows = np.array([3, 0, 7, 8, 1])
    sensitivity = output_sensitivity(stage, rows)
    weights = {name: p for name, p in cell.model.named_parameters() if "heads.t1" not in name}
    exact = one_by_one(stage, weights, rows)
    assert set(sensitivity) == set(exact)
    for name, value in exact.items():
        torch.testing.assert_close(sensitivity[name], value / 5, rtol=1e-4, atol=1e-5)
    assert all(parameter.requires_grad for parameter in cell.model.parameters())


def test_sensitivity_of_a_bias_equals_finite_differences(folder: Path) -> None:
    """One row: the gradient with respect to one bias, by central differences in float64."""
    cell = Cell(folder, MAS())
    stage = cell.open(0)
    cell.model.double()
    sensitivity = output_sensitivity(stage, np.array([3]))
    bias = cell.model.backbone.encoder.layer[1].attention.output.dense.bias
    inputs = stage.data.batch(np.array([3]), stage.device).inputs
    values = []
    with torch.no_grad():
        for change in (1e-5, -2e-5):
            bias[4] += change
            values.append(float(cell.model(inputs, "t0").square().sum()))
    expected_gradient = abs(values[0] - values[1]) / 2e-5
    name = "backbone.encoder.layer.1.attention.output.dense.bias"
    np.testing.assert_allclose(float(sensitivity[name][4]), expected_gradient, rtol=1e-3)


def test_importance_sums_over_tasks_and_pulls_to_the_last_weights(folder: Path) -> None:
    cell = Cell(folder, MAS(strength=3.0, examples=None), heads=("a", "b", "c"))
    expected: dict[str, torch.Tensor] = {}
    for index in range(2):
        stage, _ = cell.stage(index)
        for name, value in output_sensitivity(stage, np.arange(12)).items():
            expected[name] = expected.get(name, 0) + value
    importance = cell.method.importance  # type: ignore[attr-defined]
    assert set(importance) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(importance[name], value)

    stage = cell.begin(2)
    start = cell.context.snapshot()
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.add_(0.01)
            parameter.grad = torch.zeros_like(parameter)
    cell.method.edit_gradients(stage)
    for name, parameter in cell.model.backbone_parameters().items():
        moved = parameter.detach().double().numpy() - start[name].double().numpy()
        expected_gradient = 2 * 3.0 * importance[name].double().numpy() * moved
        np.testing.assert_allclose(parameter.grad.numpy(), expected_gradient, rtol=1e-4, atol=1e-9)
    assert all(not head.weight.grad.any() for head in cell.model.heads.values())


def test_rows_are_drawn_by_the_seed(folder: Path) -> None:
    def importance(seed: int, examples: int | None) -> torch.Tensor:
        cell = Cell(folder, MAS(examples=examples), seed=seed)
        cell.method.after_stage(cell.open(0))
        value: torch.Tensor = cell.method.importance["heads.t0.bias"]  # type: ignore[attr-defined]
        return value

    assert torch.equal(importance(0, 5), importance(0, 5))
    assert not torch.equal(importance(0, 5), importance(1, 5))
    torch.testing.assert_close(importance(0, 12), importance(0, None))


def test_the_last_stage_adds_no_importance(folder: Path) -> None:
    cell = Cell(folder, MAS())
    cell.method.after_stage(cell.open(1))
    assert cell.method.state() == {"importance": {}}


@pytest.mark.parametrize("method", [SI(c=1e6), MAS(strength=1e6)], ids=lambda m: m.name)
def test_the_first_stage_equals_vanilla(folder: Path, method: Method) -> None:
    pulled, plain = Cell(folder, method), Cell(folder, Vanilla())
    pulled.stage(0)
    plain.stage(0)
    assert not differ(pulled, plain)
    pulled.stage(1)
    plain.stage(1)
    assert differ(pulled, plain)


@pytest.mark.parametrize(
    ("weak", "strong"),
    [(SI(c=1e-6), SI(c=1e5)), (MAS(strength=1e-6), MAS(strength=1e3))],
    ids=["si", "mas"],
)
def test_a_strong_pull_holds_important_weights(folder: Path, weak: Method, strong: Method) -> None:
    moved = []
    for method in (weak, strong):
        cell = Cell(folder, method)
        cell.stage(0)
        importance = dict(cell.method.importance)  # type: ignore[attr-defined]
        anchor = cell.context.snapshot()
        _, trace = cell.stage(1)
        now = weights(cell)
        terms = [(importance[n] * (now[n] - anchor[n]).square()).sum() for n in anchor]
        moved.append(float(torch.stack(terms).sum()))
        assert trace.curves["penalty"][-1][1] > 0
    assert moved[1] < 0.5 * moved[0]


@pytest.mark.parametrize("method", [SI(), MAS()], ids=lambda m: m.name)
def test_a_shared_head_is_held_and_a_new_one_is_not(folder: Path, method: Method) -> None:
    cell = Cell(folder, method, heads=("a", "a", "b"))
    cell.stage(0)
    assert "heads.a.weight" in method.importance  # type: ignore[attr-defined]
    cell.begin(1)
    for parameter in cell.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        cell.model.head("a").weight.add_(1.0)
    method._pull.edit_gradients()  # type: ignore[attr-defined]
    assert cell.model.head("a").weight.grad.abs().max() > 0
    assert not cell.model.head("b").weight.grad.any()


@pytest.mark.parametrize("method", [SI(), MAS()], ids=lambda m: m.name)
def test_only_importance_is_kept_between_stages(folder: Path, method: Method) -> None:
    cell = Cell(folder, method)
    cell.stage(0)
    assert set(method.state()) == {"importance"}
    names = set(weights(cell)) - {"heads.t1.weight", "heads.t1.bias"}
    assert set(method.state()["importance"]) == names
