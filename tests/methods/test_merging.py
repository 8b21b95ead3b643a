"""TIES and DARE against merges worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights

from clbench.methods.base import Vanilla
from clbench.methods.merging import Dare, Merging, Ties

THREE = ("a", "b", "c")


def merged(method: Merging, changes: list[list[float]]) -> list[float]:
    """Return the merge of the changes of five weights in two tensors."""
    zeros = {"v": torch.zeros(2), "w": torch.zeros(1, 3)}
    model = SimpleNamespace(backbone_parameters=lambda: zeros, named_parameters=list)
    method.setup(SimpleNamespace(model=model, snapshot=lambda names: {}))  # type: ignore[arg-type]
    stage: Any = SimpleNamespace(rng=lambda name: torch.Generator().manual_seed(1))
    for values in changes:
        tensor = torch.tensor(values)
        method.add(stage, {"v": tensor[:2], "w": tensor[2:].view(1, 3)})
    result = method.merged()
    return [*result["v"].tolist(), *result["w"].flatten().tolist()]


def test_ties_trims_elects_and_averages() -> None:
    """With 60 % kept, each task keeps its three largest changes."""
    one, two, three = (
        [3.0, -1.0, 2.0, 0.1, -4.0],  # trimmed: 3, 0, 2, 0, -4
        [1.0, -5.0, -6.0, 2.0, 0.2],  # trimmed: 0, -5, -6, 2, 0
        [-2.0, -1.0, -3.0, 4.0, 0.5],  # trimmed: -2, 0, -3, 4, 0
    )
    assert merged(Ties(keep=0.6), [one]) == [3.0, 0.0, 2.0, 0.0, -4.0]
    # Sums: 3, -5, -4, 2, -4.
    assert merged(Ties(keep=0.6), [one, two]) == [3.0, -5.0, -6.0, 2.0, -4.0]
    # Sums: 1, -5, -7, 6, -4; the third weight is the mean of -6 and -3.
    assert merged(Ties(keep=0.6), [one, two, three]) == [3.0, -5.0, -4.5, 3.0, -4.0]
    # Changes that cancel have no sign.
    assert merged(Ties(keep=1.0), [one, [-value for value in one]]) == [0.0] * 5


def test_dare_rescales_what_it_does_not_drop() -> None:
    one, two = [3.0, -1.0, 2.0, 0.5, -4.0], [1.0, -5.0, -6.0, 2.0, 0.25]
    assert merged(Dare(drop=0.0), [one, two]) == [4.0, -6.0, -4.0, 2.5, -3.75]
    assert merged(Dare(drop=0.0, combine="mean"), [one, two]) == [2.0, -3.0, -2.0, 1.25, -1.875]
    ratios = [m / value for m, value in zip(merged(Dare(drop=0.75), [one]), one, strict=True)]
    assert set(ratios) == {0.0, 4.0}


def test_dare_drops_a_share_and_keeps_the_mean(folder: Path) -> None:
    cell, trained = Cell(folder, Dare(drop=0.8)), Cell(folder, Vanilla())
    cell.stage(0)
    trained.stage(0)
    changes, kept = [], []
    for name, before in cell.start.items():
        changes.append((weights(trained)[name] - before).flatten())
        kept.append((weights(cell)[name] - before).flatten())
    change, left = torch.cat(changes), torch.cat(kept)
    moved = change.abs() > 1e-5
    zero = left[moved] == 0
    assert float(zero.float().mean()) == pytest.approx(0.8, abs=0.01)
    torch.testing.assert_close(left[moved][~zero], 5 * change[moved][~zero], rtol=1e-3, atol=1e-6)


def separately(folder: Path, heads: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the weights after each task, trained from the pretrained weights by vanilla."""
    result = []
    for index in range(len(heads)):
        cell = Cell(folder, Vanilla(), heads=heads)
        cell.stage(index)
        result.append({n: w.double().numpy() for n, w in weights(cell).items()})
    return result


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_the_model_is_the_merge_of_separately_trained_tasks(folder: Path, tasks: int) -> None:
    cell = Cell(folder, Ties(keep=0.3, scale=0.5), heads=THREE)
    start = {n: w.double().numpy() for n, w in cell.start.items()}
    for index in range(tasks):
        cell.stage(index)
    trained = separately(folder, THREE)[:tasks]
    changes = np.stack(
        [np.concatenate([(task[n] - start[n]).ravel() for n in start]) for task in trained]
    )
    for change in changes:
        change[np.abs(change) < np.quantile(np.abs(change), 0.7)] = 0.0
    sign = np.sign(changes.sum(0))
    agrees = (np.sign(changes) == sign) & (changes != 0)
    expected = 0.5 * (changes * agrees).sum(0) / np.maximum(1, agrees.sum(0))
    now = np.concatenate(
        [(weights(cell)[n].double().numpy() - start[n]).ravel() for n in cell.start]
    )
    # The last bits decide which of two changes of nearly equal size is trimmed.
    assert (np.abs(now - expected) > 1e-6).mean() < 1e-3
    for task, head in zip(trained, THREE, strict=False):
        np.testing.assert_array_equal(
            weights(cell)[f"heads.{head}.weight"], task[f"heads.{head}.weight"]
        )


@pytest.mark.parametrize("method", [Ties, Dare])
def test_memory_does_not_grow_with_the_tasks(folder: Path, method: type[Merging]) -> None:
    from clbench.training.memory import bytes_held

    cell = Cell(folder, method(), heads=("a", "a", "a"))
    held = []
    for index in range(3):
        cell.stage(index)
        held.append(bytes_held(cell.method))
    assert held[0] == held[1] == held[2]
    size = sum(4 * value.numel() for value in cell.start.values())
    assert held[0] / size == pytest.approx(3.5 if method is Ties else 2.0, abs=0.05)


def test_outputs_of_a_shared_head_are_those_of_the_tasks_with_the_class(folder: Path) -> None:
    cell = Cell(folder, Ties(), heads=("a", "a"))
    cell.tasks = [
        replace(task, rows=replace(task.rows, labels=np.full(12, index)))
        for index, task in enumerate(cell.tasks)
    ]
    trained = []
    for index in range(2):
        cell.train(index)
        trained.append(weights(cell)["heads.a.weight"])
        cell.method.after_stage(cell.open(index))
    merged = weights(cell)["heads.a.weight"]
    assert torch.equal(merged[0], trained[0][0])
    assert torch.equal(merged[1], trained[1][1])
    assert not torch.equal(merged[0], trained[1][0])


def test_classes_that_all_tasks_have_get_their_mean(folder: Path) -> None:
    heads = ("a", "a", "a")
    cell = Cell(folder, Dare(), heads=heads).run()
    mean = np.mean([task["heads.a.weight"] for task in separately(folder, heads)], axis=0)
    np.testing.assert_allclose(weights(cell)["heads.a.weight"], mean, rtol=1e-5, atol=1e-7)


def test_the_head_of_a_regression_task_is_kept(folder: Path) -> None:
    cell = Cell(folder, Ties(), heads=THREE)
    cell.regress(1)
    cell.method.setup(cell.context)
    cell.stage(0)
    cell.train(1)
    trained = weights(cell)["heads.b.weight"]
    cell.method.after_stage(cell.open(1))
    cell.stage(2)
    assert torch.equal(weights(cell)["heads.b.weight"], trained)
