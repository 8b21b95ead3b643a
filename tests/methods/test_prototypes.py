"""Prototypes against numbers worked out by hand, and against distances to the class means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.cell import PROTOCOL, Cell, weights

from clbench.methods.class_means import NEVER, Prototypes, shrink
from clbench.suite.baselines import read_baseline
from clbench.suite.sweeps import axes
from clbench.training.batches import Batch


def batch(head: str, labels: list[Any], *, regression: bool = False) -> Batch:
    kind = torch.float32 if regression else torch.int64
    return Batch({}, torch.tensor(labels, dtype=kind), head, regression, 0, np.arange(0), 0)


def method(outputs: dict[str, int], shrinkage: Any) -> Prototypes:
    """Return the method before any row, with heads on two features."""

    class Model:
        def head(self, name: str) -> Any:
            return torch.nn.Linear(2, outputs[name])

    made = Prototypes(shrinkage=shrinkage)
    made.moment, made.sums, made._classifier = 0.0, {}, Model()  # type: ignore[assignment]
    return made


def points(*rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_the_rule_of_two_heads_by_hand() -> None:
    made = method({"a": 3, "b": 2}, 0.5)
    made.add(batch("a", [0, 1, 0]), points([-2, 0], [4, 1], [2, 0]))
    made.add(batch("a", [1]), points([4, 3]))
    made.add(batch("b", [1, 1, 0, 0]), points([1, 7], [1, 7], [0, -1], [0, -1]))
    # Around the means (0, 0) and (4, 2), and (0, -1) and (1, 7), the eight rows have the sums of
    # squares 8 and 2. So the covariance is diag(1, 1/4), and halfway to its mean variance 5/8
    # diag(13/16, 7/16).
    solved = made.solve()
    weight, bias = solved["a"]
    expected = [[0.0, 0.0], [64 / 13, 32 / 7], [0.0, 0.0]]
    torch.testing.assert_close(weight, points(*expected))
    torch.testing.assert_close(bias, points(0.0, -0.5 * (256 / 13 + 64 / 7), NEVER))
    torch.testing.assert_close(solved["b"][0], points([0.0, -16 / 7], [16 / 13, 16.0]))
    torch.testing.assert_close(solved["b"][1], points(-8 / 7, -0.5 * (16 / 13 + 112)))


def test_multiple_choice_by_hand() -> None:
    made = method({"choice": 1}, 1.0)
    made.add(batch("choice", [1, 0]), points([[0, 0], [3, 0]], [[5, 0], [2, 0]]))
    # Right choices (3, 0) and (5, 0), wrong ones (0, 0) and (2, 0): each is 1 from its mean (4, 0)
    # or (1, 0), so the covariance is diag(1, 0), shrunk to I/2.
    weight, bias = made.solve()["choice"]
    torch.testing.assert_close(weight, points([6.0, 0.0]))
    torch.testing.assert_close(bias, points(-16.0 + 1.0))


def test_regression_by_hand() -> None:
    made = method({"value": 1}, 1.0)
    made.add(batch("value", [1.0, 5.0], regression=True), points([0, 1], [2, 1]))
    # Covariance diag(1, 0), shrunk to I/2; joint with the targets (2, 0); means (1, 1) and 3.
    weight, bias = made.solve()["value"]
    torch.testing.assert_close(weight, points([4.0, 0.0]))
    torch.testing.assert_close(bias, points(3.0 - 4.0))


def test_oracle_approximating_shrinkage_by_hand() -> None:
    # p = 2, n = 9, S = diag(3, 1): (1 - 1)·10 + 16 over (9 + 1 - 1)·(10 - 8) is 8/9.
    shrunk = shrink(points([3, 0], [0, 1]), 9.0, "oas")
    torch.testing.assert_close(shrunk, points([2 + 1 / 9, 0], [0, 2 - 1 / 9]))
    assert torch.equal(shrink(points([0, 0], [0, 0]), 9.0, "oas"), points([1, 0], [0, 1]))


def features(cell: Cell, task: int) -> Any:
    data = cell.tasks[task]
    every = data.batch(np.arange(len(data.rows)), cell.context.device)
    cell.model.eval()
    with torch.no_grad():
        return cell.model.features(every.inputs).double().numpy()


def test_answers_are_the_nearest_means_over_all_stages(folder: Path) -> None:
    cell = Cell(folder, Prototypes(shrinkage=0.3), heads=("a", "b", "a")).run()
    labels = [data.rows.labels for data in cell.tasks]
    rows = {"a": [0, 2], "b": [1]}
    x = {head: np.concatenate([features(cell, i) for i in rows[head]]) for head in rows}
    y = {head: np.concatenate([labels[i] for i in rows[head]]) for head in rows}
    means = {head: np.stack([x[head][y[head] == c].mean(0) for c in (0, 1)]) for head in rows}
    spread = np.concatenate([x[head] - means[head][y[head]] for head in rows])
    covariance = spread.T @ spread / len(spread)
    covariance = 0.7 * covariance + 0.3 * np.trace(covariance) / 32 * np.eye(32)
    inverse = np.linalg.inv(covariance)
    for head in rows:
        difference = x[head][:, None] - means[head]
        distance = np.einsum("nci,ij,ncj->nc", difference, inverse, difference)
        logits = cell.model.apply_head(torch.from_numpy(x[head]), head).detach().numpy()
        margin = -0.5 * (distance[:, 1] - distance[:, 0])
        np.testing.assert_allclose(logits[:, 1] - logits[:, 0], margin, atol=2e-3)
        assert (np.sign(margin) == np.sign(y[head] - 0.5)).mean() > 0.6


def test_the_backbone_stays_and_each_row_is_read_once(folder: Path) -> None:
    protocol = PROTOCOL.model_copy(update={"weight_decay": 0.1, "batch_size": 5})
    cell = Cell(folder, Prototypes(), protocol=protocol)
    before = weights(cell)
    _, trace = cell.train(0)
    assert (trace.steps, trace.examples) == (3, 12)
    now = weights(cell)
    assert all(torch.equal(value, before[name]) for name, value in now.items())
    assert float(cell.method.sums["t0"]["weights"].sum()) == 12  # type: ignore[attr-defined]


def test_the_order_of_tasks_does_not_matter(folder: Path) -> None:
    cell, other = (Cell(folder, Prototypes(), heads=heads) for heads in (("a", "b"), ("b", "a")))
    other.tasks = [
        replace(cell.tasks[1], task=0, name="t0"),
        replace(cell.tasks[0], task=1, name="t1"),
    ]
    first, second = weights(cell.run()), weights(other.run())
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-4)


def test_a_rate_is_not_tuned() -> None:
    assert list(axes(read_baseline("prototypes"))) == ["shrinkage"]
