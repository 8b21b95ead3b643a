"""Memory aware synapses against cases worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights
from helpers.checkpoints import make_checkpoint

from clbench.methods.synapses import MAS, one_by_one, output_sensitivity


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


def test_a_strong_pull_holds_important_weights(folder: Path) -> None:
    moved = []
    for strength in (1e-6, 1e3):
        cell = Cell(folder, MAS(strength=strength))
        cell.stage(0)
        importance = dict(cell.method.importance)  # type: ignore[attr-defined]
        anchor = cell.context.snapshot()
        _, trace = cell.stage(1)
        now = weights(cell)
        terms = [(importance[n] * (now[n] - anchor[n]).square()).sum() for n in anchor]
        moved.append(float(torch.stack(terms).sum()))
        assert trace.curves["penalty"][-1][1] > 0
    assert moved[1] < 0.5 * moved[0]
