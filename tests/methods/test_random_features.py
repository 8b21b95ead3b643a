"""KLDA and RanPAC against closed forms on all rows, worked out with NumPy and scikit-learn."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights
from sklearn.linear_model import Ridge

from clbench.conformance.sessions import Candidate
from clbench.core.errors import SettingsError
from clbench.methods.base import Method
from clbench.methods.class_means import NEVER
from clbench.methods.random_features import (
    KLDA,
    RIDGES,
    RandomFeatureHead,
    RanPAC,
    held_out_errors,
    random_features,
)
from clbench.suite.baselines import read_baseline
from clbench.suite.sweeps import axes
from clbench.training.memory import bytes_held


def features(cell: Cell, *tasks: int) -> Any:
    """Return the pooled features of all rows of tasks, float64."""
    cell.model.eval()
    parts = []
    for data in (cell.tasks[task] for task in tasks):
        every = data.batch(np.arange(len(data.rows)), cell.context.device)
        with torch.no_grad():
            parts.append(cell.model.features(every.inputs).double().numpy())
    return np.concatenate(parts)


def labels(cell: Cell, *tasks: int) -> Any:
    return np.concatenate([cell.tasks[task].rows.labels for task in tasks])


def drawn(cell: Cell) -> tuple[Any, Any]:
    """Return the random directions and phases of a cell's heads, in float64."""
    head = next(iter(cell.model.heads.values()))
    phases = head.phases
    return head.directions.double().numpy(), None if phases is None else phases.numpy()


def scored(cell: Cell, head: str, x: Any) -> Any:
    with torch.no_grad():
        return cell.model.apply_head(torch.from_numpy(x), head).double().numpy()


def discriminants(phi: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    """Return the discriminants of the rows of each head, with a covariance shrunk by 0.3."""
    means = {h: np.stack([phi[h][y[h] == c].mean(0) for c in range(2)]) for h in phi}
    spread = np.concatenate([phi[h] - means[h][y[h]] for h in phi])
    covariance = spread.T @ spread / len(spread)
    mean = np.trace(covariance) / len(covariance)
    inverse = np.linalg.inv(0.7 * covariance + 0.3 * mean * np.eye(len(covariance)))
    return {
        h: phi[h] @ inverse @ means[h].T
        - 0.5 * np.einsum("cd,de,ce->c", means[h], inverse, means[h])
        for h in phi
    }


def test_the_products_of_fourier_features_are_the_kernel() -> None:
    method = KLDA(features=50_000, gamma=0.3)
    random = method.random_map(torch.Generator().manual_seed(1), 3)
    points = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 2.0], [0.5, -1.0, 0.0]])
    phi = random_features(points, *random)[0]
    expected = torch.exp(-0.3 * torch.tensor([[0, 5, 1.25], [5, 0, 5.25], [1.25, 5.25, 0]]))
    torch.testing.assert_close(phi @ phi.T, expected, atol=0.02, rtol=0.0)


def test_the_projection_of_ranpac_by_hand() -> None:
    directions = torch.tensor([[[1.0, -2.0, 0.0], [3.0, 1.0, -1.0]]])
    # (1·2 + 3·1, -2·2 + 1·1, -1·1), of which only the first is positive.
    mapped = random_features(torch.tensor([[2.0, 1.0]]), directions, None)
    assert mapped.tolist() == [[[5.0, 0.0, 0.0]]]


@pytest.mark.parametrize("shape", [(2,), (3, 2)])
def test_the_probabilities_of_an_ensemble_are_averaged(shape: tuple[int, ...]) -> None:
    head = RandomFeatureHead(2, torch.tensor([[[1.0], [0.0]], [[0.0], [1.0]]]), None)
    with torch.no_grad():
        # Member 1: logits (2x₁, 0); member 2: (0, x₂) + (0, 1).
        head.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        head.bias.copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    x = torch.tensor([1.0, 3.0]).expand(4, *shape)
    first = math.exp(2) / (math.exp(2) + 1)
    second = 1 / (1 + math.exp(4))
    p = 0.5 * (first + second)
    expected = torch.tensor([math.log(p), math.log(1 - p)]).expand(4, *shape[:-1], 2)
    torch.testing.assert_close(head(x), expected)


def test_klda_is_the_discriminant_of_all_rows(folder: Path) -> None:
    cell = Cell(folder, KLDA(features=20, gamma=0.05, shrinkage=0.3), heads=("a", "b", "a")).run()
    omega, phases = drawn(cell)
    tasks: dict[str, list[int]] = {"a": [0, 2], "b": [1]}
    x = {head: features(cell, *rows) for head, rows in tasks.items()}
    phi = {h: math.sqrt(2 / 20) * np.cos(x[h] @ omega[0] + phases[0]) for h in x}
    expected = discriminants(phi, {head: labels(cell, *rows) for head, rows in tasks.items()})
    for head, values in expected.items():
        np.testing.assert_allclose(scored(cell, head, x[head]), values, atol=2e-3, rtol=1e-4)


def test_an_ensemble_of_klda_averages_discriminants(folder: Path) -> None:
    cell = Cell(
        folder, KLDA(features=10, gamma=0.05, ensemble=3, shrinkage=0.3), heads=("a", "a")
    ).run()
    omega, phases = drawn(cell)
    x, y, total = features(cell, 0, 1), labels(cell, 0, 1), np.zeros((24, 2))
    for each, phase in zip(omega, phases, strict=True):
        phi = math.sqrt(2 / 10) * np.cos(x @ each + phase)
        logits = np.exp(discriminants({"a": phi}, {"a": y})["a"])
        total += logits / logits.sum(1, keepdims=True) / 3
    np.testing.assert_allclose(np.exp(scored(cell, "a", x)), total, atol=1e-3)
    assert not np.allclose(omega[0], omega[1])


@pytest.mark.parametrize("ridge", [0.5, 30.0])
def test_ranpac_is_the_ridge_regression_of_all_rows(folder: Path, ridge: float) -> None:
    cell = Cell(folder, RanPAC(features=40, ridge=ridge), heads=("a", "b", "a")).run()
    omega, _ = drawn(cell)
    x, y = features(cell, 0, 1, 2), labels(cell, 0, 1, 2)
    targets = np.zeros((36, 4))  # the classes of both heads
    targets[np.arange(36), y + 2 * (np.arange(36) // 12 == 1)] = 1.0
    model = Ridge(alpha=ridge, fit_intercept=False).fit(np.maximum(x @ omega[0], 0), targets)
    expected = np.maximum(x @ omega[0], 0) @ model.coef_.T
    np.testing.assert_allclose(scored(cell, "a", x), expected[:, :2], atol=1e-3)
    np.testing.assert_allclose(scored(cell, "b", x), expected[:, 2:], atol=1e-3)


def test_the_ridge_has_the_least_error_on_held_out_rows() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 60)), rng.normal(size=(50, 2))
    y[:, 0] += x[:, 0]
    expected = []
    for ridge in RIDGES:
        model = Ridge(alpha=ridge, fit_intercept=False).fit(x[:40], y[:40])
        expected.append(float(((model.predict(x[40:]) - y[40:]) ** 2).sum()))
    errors = held_out_errors(torch.from_numpy(x), torch.from_numpy(y))
    np.testing.assert_allclose(errors, expected, rtol=1e-5)


def test_the_chosen_ridge_is_used_and_recorded(folder: Path) -> None:
    cell = Cell(folder, RanPAC(features=40), heads=("a", "a"))
    cell.stage(0)
    stage, _ = cell.stage(1)
    method: Any = cell.method
    chosen = RIDGES[int(np.argmin(method.errors))]
    assert stage.log["ridge"][-1][1] == chosen
    other = Cell(folder, RanPAC(features=40, ridge=chosen), heads=("a", "a")).run()
    for name, value in weights(cell).items():
        assert torch.equal(value, weights(other)[name])


METHODS = {
    "klda": lambda: KLDA(features=30, gamma=0.05),
    "klda-ensemble": lambda: KLDA(features=30, gamma=0.05, ensemble=2),
    "ranpac": lambda: RanPAC(features=30, ridge=1.0),
    "ranpac-held-out": lambda: RanPAC(features=30),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_tasks_does_not_matter(folder: Path, name: str) -> None:
    cell, other = (
        Cell(folder, METHODS[name](), heads=heads) for heads in (("a", "b", "a"), ("a", "b", "a"))
    )
    other.tasks = [
        replace(cell.tasks[2], task=0),
        cell.tasks[1],
        replace(cell.tasks[0], task=2),
    ]
    first, second = weights(cell.run()), weights(other.run())
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=1e-4, atol=1e-4)
    if name == "ranpac-held-out":
        np.testing.assert_allclose(cell.method.errors, other.method.errors, rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_only_heads_change_and_classes_without_rows_are_never_the_answer(
    folder: Path, name: str
) -> None:
    cell = Cell(folder, METHODS[name](), shown=(2, 4))
    before = weights(cell)
    cell.stage(0)
    now = weights(cell)
    assert {key for key in now if not torch.equal(now[key], before[key])} == {
        "heads.a.weight",
        "heads.a.bias",
    }
    head = cell.model.head("a")
    assert (head.bias[2:] == NEVER).all()
    assert (head.bias[:2] > NEVER).all()
    assert not any("directions" in key or "phases" in key for key in cell.model.state_dict())
    cell.stage(1)
    assert (head.bias > NEVER).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_regression_task_is_learned(folder: Path, name: str) -> None:
    cell = Cell(folder, METHODS[name](), heads=("a", "b", "a"))
    task, x = cell.tasks[1], features(cell, 1)
    values = (x[:, 0] * 2 + 1).astype(np.float32)
    cell.tasks[1] = replace(task, regression=True, rows=replace(task.rows, labels=values))
    head = cell.model.heads["b"]
    cell.model.heads["b"] = RandomFeatureHead(1, head.directions, head.phases)
    cell.run()
    outputs = scored(cell, "b", x)[:, 0]
    assert np.corrcoef(outputs, values)[0, 1] > 0.8
    np.testing.assert_allclose(outputs.mean(), values.mean(), atol=0.2)


@pytest.mark.parametrize("name", METHODS)
def test_right_and_wrong_choices_are_two_classes(folder: Path, name: str) -> None:
    """Six rows whose first choice is right are twelve rows, of class 1 and of class 0 in turn."""
    x = np.random.default_rng(0).normal(size=(12, 32)).astype(np.float32)
    solved = []
    for vectors, targets in ((x, [1, 0] * 6), (x.reshape(6, 2, 32), [0] * 6)):
        cell = Cell(folder, METHODS[name](), heads=("a",))
        head, task = cell.model.heads["a"], cell.tasks[0]
        if vectors.ndim == 3:
            cell.model.heads["a"] = RandomFeatureHead(1, head.directions, head.phases)
        rows = replace(task.rows.take(np.arange(len(targets))), labels=np.array(targets))
        cell.tasks[0] = replace(task, rows=rows)
        stage = cell.begin(0)
        stage.features = lambda _, vectors=vectors: vectors  # type: ignore[method-assign]
        cell.method.after_stage(stage)
        solved.append(weights(cell))
    for key in ("heads.a.weight", "heads.a.bias"):
        two, one = (each[key] for each in solved)
        torch.testing.assert_close(one, two[1:] - two[:1], rtol=1e-4, atol=1e-5)
    assert solved[1]["heads.a.weight"].abs().max() > 0.01


@pytest.mark.parametrize("name", METHODS)
def test_only_class_sums_are_added_by_a_task(folder: Path, name: str) -> None:
    cell = Cell(folder, METHODS[name](), heads=("a", "b", "c"))
    held = []
    for index in range(3):
        cell.stage(index)
        held.append(bytes_held(cell.method))
    members = len(next(iter(cell.model.heads.values())).directions)
    # Two classes have a sum of 30 features and a count, in float64.
    assert [b - a for a, b in itertools.pairwise(held)] == [8 * (2 * 30 * members + 2)] * 2
    assert held[0] >= 8 * members * 30**2


def test_a_rate_is_not_tuned_and_the_checks_are_small() -> None:
    assert list(axes(read_baseline("klda"))) == ["gamma"]
    assert list(axes(read_baseline("ranpac"))) == ["ridge"]
    assert Candidate.of("ranpac").make().settings()["features"] == 64
    assert Candidate.of("ranpac", {"features": 9}).make().settings()["features"] == 9
    assert Candidate.of("prototypes").baseline == read_baseline("prototypes")


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (KLDA, {"gamma": 0.0}, "gamma"),
        (KLDA, {"lr": 0.1}, "no effect on klda"),
        (RanPAC, {"ridge": -1.0}, "ridge"),
        (RanPAC, {"features": 0}, "features"),
    ],
)
def test_wrong_settings_are_refused(
    method: type[Method], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        method(**settings)
