"""iCaRL against numbers worked out by hand, and against what it promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, weights

from clbench.core.errors import SettingsError
from clbench.methods.class_means import NEVER, ICaRL, herding
from clbench.tasks.registry import load_task


def growing(folder: Path, classes: list[list[int]], memory: int = 8, rest: Any = "drop") -> Cell:
    """Return a cell whose tasks have these classes of one head with four outputs."""
    cell = Cell(folder, ICaRL(memory=memory, rest=rest), heads=("a",) * len(classes))
    cell.model.heads["a"] = torch.nn.Linear(32, 4)
    for i, part in enumerate(classes):
        cell.relabel(i, part)
    return cell


def test_herding_by_hand() -> None:
    """The mean is (.6, .533): (.8, .6) is nearest, then (0, 1) brings the mean of two to (.4, .8).

    By (1, 0), which is nearer to the class mean itself, it would become (.9, .3), farther away.
    """
    features = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    assert herding(features, 2).tolist() == [1, 2]
    assert herding(features, 9).tolist() == [1, 2, 0]


def test_herding_brings_means_nearest_to_that_of_the_class() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6)) + 1.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    chosen: list[int] = []
    for _ in range(10):  # Algorithm 4 as printed
        free = [i for i in range(40) if i not in chosen]
        far = [np.linalg.norm(rows.mean(0) - rows[[*chosen, i]].mean(0)) for i in free]
        chosen.append(free[int(np.argmin(far))])
    assert herding(torch.from_numpy(rows), 10).tolist() == chosen


def cross_entropy(target: Any, logits: Any) -> Any:
    p = 1 / (1 + np.exp(-logits))
    return -(target * np.log(p) + (1 - target) * np.log(1 - p))


def test_the_loss_by_hand(folder: Path) -> None:
    """Old classes learn their earlier outputs, new ones the labels, on rows of either task."""
    cell = growing(folder, [[0, 1], [2]])
    cell.model.shown = {"a": 2}
    cell.stage(0)
    cell.model.shown = {"a": 3}
    stage = cell.begin(1)
    rows, kept = cell.method.training_data(stage)
    cell.model.eval()
    batches = [data.batch(np.array([1, 5, 2]), stage.device) for data in (rows, kept)]
    then = [stage.logits(batch).detach().double().numpy() for batch in batches]
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    for batch, new, old in zip(batches, (1.0, 0.0), then, strict=True):
        targets = np.hstack([1 / (1 + np.exp(-old[:, :2])), np.full((3, 1), new)])
        logits = stage.logits(batch).detach().double().numpy()
        assert logits.shape == (3, 3)
        expected = cross_entropy(targets, logits).sum() / 3
        assert cell.method.loss(stage, batch).item() == pytest.approx(expected, rel=1e-5)


def test_rows_are_read_before_a_stage_only_if_there_are_earlier_classes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = growing(folder, [[0, 1], [2]])
    passes, features = [0, 0], cell.model.features
    stage = 0

    def counted(*arguments: Any) -> Any:
        passes[stage] += 1
        return features(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(cell.model, "features", counted)
        cell.begin(0)
    cell.stage(0)
    stage = 1
    monkeypatch.setattr(cell.model, "features", counted)
    cell.begin(1)
    assert passes == [0, 2]  # the stage's rows, and the exemplars


def test_other_heads_are_distilled(folder: Path) -> None:
    cell = Cell(folder, ICaRL(memory=4))
    cell.stage(0)
    stage = cell.begin(1)
    rows, kept = cell.method.training_data(stage)
    cell.model.eval()
    for data, labelled in ((rows, True), (kept, False)):
        batch = data.batch(np.array([0, 2]), stage.device)
        then = stage.logits(batch, head="t0").detach().double().numpy()
        expected = cross_entropy(1 / (1 + np.exp(-then)), then).sum() / 2
        if labelled:
            own = stage.logits(batch, head="t1").detach().double().numpy()
            expected += cross_entropy(np.eye(2)[batch.labels.numpy()], own).sum() / 2
        assert cell.method.loss(stage, batch).item() == pytest.approx(expected, rel=1e-5)


def test_the_memory_is_divided_evenly_and_the_best_stay(folder: Path) -> None:
    cell = growing(folder, [[0, 1], [2], [1, 3]], memory=10)
    method = cell.method
    cell.stage(0)
    first = {label: kept.tolist() for label, kept in method.exemplars[0].items()}
    assert [len(kept) for kept in first.values()] == [5, 5]
    cell.stage(1)
    assert {label: kept.tolist() for label, kept in method.exemplars[0].items()} == {
        label: kept[:3] for label, kept in first.items()
    }
    _, trace = cell.stage(2)
    assert trace.rows == 12 + 3 * 3
    assert {t: {c: len(k) for c, k in kept.items()} for t, kept in method.exemplars.items()} == {
        0: {0: 2, 1: 1},
        1: {2: 2},
        2: {1: 1, 3: 2},
    }
    for task, kept in method.exemplars.items():
        for label, positions in kept.items():
            assert (cell.tasks[task].rows.labels[positions] == label).all()


def test_classes_that_come_again_need_no_more_memory(folder: Path) -> None:
    """Four classes in four rows: those of three tasks keep their row of the first."""
    cell = growing(folder, [[0, 1], [0, 1, 2, 3], [1, 2, 3]], memory=4).run()
    kept = {t: {c: len(k) for c, k in some.items()} for t, some in cell.method.exemplars.items()}
    assert kept == {0: {0: 1, 1: 1}, 1: {0: 0, 1: 0, 2: 1, 3: 1}, 2: {1: 0, 2: 0, 3: 0}}
    assert len(cell.method.training_data(cell.open(2))) == 1 + 2
    assert (cell.method.means["a"].norm(dim=1) > 0.99).all()


def test_answers_are_the_nearest_means_of_exemplars(folder: Path) -> None:
    cell = growing(folder, [[0, 1], [1, 3]], memory=9)
    cell.run()
    cell.model.eval()
    x = {}
    with torch.no_grad():
        for task, data in enumerate(cell.tasks):
            every = data.batch(np.arange(12), cell.context.device)
            pooled = cell.model.features(every.inputs).double().numpy()
            x[task] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    means = {}
    for label, tasks in {0: [0], 1: [0, 1], 3: [1]}.items():
        kept = np.concatenate([x[t][cell.method.exemplars[t][label]] for t in tasks])
        means[label] = kept.mean(0) / np.linalg.norm(kept.mean(0))
    labels = np.array(list(means))
    before = weights(cell)
    for task, data in enumerate(cell.tasks):
        distance = np.linalg.norm(x[task][:, None] - np.stack(list(means.values())), axis=2)
        with cell.method.scoring(task):
            outputs = cell.context.outputs(data)
        assert outputs.argmax(1).tolist() == labels[distance.argmin(1)].tolist()
        assert (outputs[:, 2] == np.float32(NEVER)).all()  # no task has class 2
    assert all(torch.equal(value, before[name]) for name, value in weights(cell).items())
    stage = cell.open(1)
    cell.method.before_stage(stage)
    with cell.method.scoring(0):  # in training, the head itself is scored
        assert torch.equal(weights(cell)["heads.a.weight"], before["heads.a.weight"])


def test_old_classes_are_remembered(folder: Path) -> None:
    """A row's first token tells its class; vanilla answers with the new classes only."""
    cell = growing(folder, [[0, 1], [2, 3]], memory=8)
    for task, data in enumerate(cell.tasks):
        ids = np.array(data.rows.ids)
        ids[data.rows.offsets[:-1]] = 30 + data.rows.labels
        cell.tasks[task] = replace(data, rows=replace(data.rows, ids=ids))
    protocol = PROTOCOL.model_copy(update={"epochs": 6})
    cell.context.protocol = protocol
    cell.run()
    right = []
    for task, data in enumerate(cell.tasks):
        with cell.method.scoring(task):
            right += (cell.context.outputs(data).argmax(1) == data.rows.labels).tolist()
    assert np.mean(right) > 0.9


def test_tasks_without_classes_and_small_memories_are_refused() -> None:
    names = ("synthetic/entailment3", "synthetic/qa")
    tasks = [load_task(name, data=None, base=Path(), own={}) for name in names]
    ICaRL(memory=5).check_tasks(tasks)
    ICaRL(memory=3).check_tasks([tasks[0], tasks[0]])  # they share a head
    with pytest.raises(SettingsError, match=r"memory = 4 is too small: each of 5 classes"):
        ICaRL(memory=4).check_tasks(tasks)
    regression = replace(tasks[1], name="points", labels=())
    with pytest.raises(SettingsError, match="task 'points' is regression or multiple choice"):
        ICaRL().check_tasks([tasks[0], regression])


@pytest.mark.parametrize(("rest", "sizes"), [("drop", [3, 3, 3]), ("use", [4, 3, 3])])
def test_rows_left_over_are_used_on_demand(folder: Path, rest: Any, sizes: list[int]) -> None:
    cell = growing(folder, [[0, 1], [2]], memory=10, rest=rest)
    method = cell.method
    assert isinstance(method, ICaRL)
    for index, total in ((0, 10), (1, sum(sizes))):
        cell.stage(index)
        kept = {(t, k): len(rows) for t, by in method.exemplars.items() for k, rows in by.items()}
        assert kept == method._room(["a"] * 2)  # each class has rows enough
        assert sum(kept.values()) == total
    assert [*kept.values()] == sizes
