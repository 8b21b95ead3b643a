"""Details of frozen layers, random features, memories and masks that no other test notices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL as SMALL
from helpers.cell import Cell as Small
from helpers.cell import weights
from methods.test_answering_methods import CPU, Cell, task_data
from methods.test_details import encoder as encoder
from methods.test_details import generator as generator
from methods.test_details import own_cache as own_cache
from methods.test_random_features import drawn, features, scored
from sklearn.linear_model import Ridge

from clbench.methods import random_features as module
from clbench.methods.anchors import Mixout
from clbench.methods.base import EarlyStop, Vanilla
from clbench.methods.by_depth import FreezeBottom, LpFt
from clbench.methods.class_means import ICaRL
from clbench.methods.lora import Lora
from clbench.methods.quadratic import EWCMLM
from clbench.methods.random_features import KLDA, RandomFeatureHead, RanPAC
from clbench.methods.replay import AGem, Replay


@pytest.mark.parametrize(
    ("share", "depth", "frozen"),
    [(0.6, 3, 2), (0.75, 3, 2), (0.9, 3, 3), (0.2, 12, 2), (0.4, 4, 2)],
)
def test_a_share_of_the_layers_is_rounded(share: float, depth: int, frozen: int) -> None:
    assert FreezeBottom(layers=share)._frozen(depth) == frozen


def test_shares_of_steps_are_rounded(encoder: Path) -> None:
    stage = Small(encoder, Vanilla()).open(0)
    assert stage.own_steps == 6
    for share, steps in ((0.3, 2), (0.4, 2), (0.45, 3), (0.6, 4)):
        assert [phase.steps for phase in LpFt(probe=share).phases(stage)] == [steps, 6 - steps]
        assert [phase.steps for phase in EarlyStop(share=share).phases(stage)] == [steps]


@pytest.mark.parametrize("make", [lambda: KLDA(features=9), lambda: RanPAC(features=9, ridge=1.0)])
def test_the_map_is_drawn_by_the_seed(encoder: Path, make: Any) -> None:
    maps = [drawn(Small(encoder, make(), seed=seed))[0] for seed in (0, 0, 1)]
    assert np.array_equal(maps[0], maps[1])
    assert not np.array_equal(maps[0], maps[2])


def test_the_ridge_is_chosen_on_random_rows_and_not_on_too_many(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    own = module.held_out_errors
    monkeypatch.setattr(module, "held_out_errors", lambda *a: asked.append(a[1]) or own(*a))
    cell = Small(encoder, RanPAC(features=9))
    cell.stage(0)
    rows = cell.tasks[0].rows.labels
    assert len(asked[0]) == 12
    assert asked[0].sum(0).tolist() == [(rows == 0).sum(), (rows == 1).sum()]
    assert asked[0].argmax(1).tolist() != rows.tolist()  # in another order
    monkeypatch.setattr(module, "RIDGE_ROWS", 5)
    Small(encoder, RanPAC(features=9)).stage(0)
    assert len(asked[1]) == 5


@pytest.mark.parametrize("ridge", [0.5, 30.0])
def test_a_regression_is_the_ridge_regression_of_its_rows(encoder: Path, ridge: float) -> None:
    cell = Small(encoder, RanPAC(features=40, ridge=ridge), heads=("a", "b"))
    head, x = cell.model.heads["b"], features(cell, 1)
    values = (x[:, 0] * 2 + 1).astype(np.float32)
    task = cell.tasks[1]
    cell.tasks[1] = replace(task, regression=True, rows=replace(task.rows, labels=values))
    cell.model.heads["b"] = RandomFeatureHead(1, head.directions, head.phases)
    cell.run()
    mapped = np.maximum(x @ drawn(cell)[0][0], 0)
    expected = Ridge(alpha=ridge).fit(mapped, values).predict(mapped)
    np.testing.assert_allclose(scored(cell, "b", x)[:, 0], expected, atol=1e-3)


def test_a_class_that_comes_again_learns_its_labels_again(encoder: Path) -> None:
    cell = Small(encoder, ICaRL(memory=8), heads=("a", "a"))
    cell.model.heads["a"] = torch.nn.Linear(32, 4)
    cell.relabel(0, [0, 1])
    cell.relabel(1, [1, 2])
    cell.stage(0)
    stage = cell.begin(1)
    rows, _ = cell.method.training_data(stage)
    cell.model.eval()
    batch = rows.batch(np.arange(4), stage.device)
    logits = stage.logits(batch).detach().double()
    targets = torch.nn.functional.one_hot(batch.labels, 4).double()
    targets[:, 0] = logits[:, 0].sigmoid()  # class 0 alone is not among those of the stage
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, targets, reduction="sum"
    )
    found = cell.method.loss(stage, batch)
    assert float(found.detach()) == pytest.approx(float(expected) / 4, rel=1e-5)


def test_the_edited_gradient_does_not_point_against_the_memory(encoder: Path) -> None:
    cell = Small(encoder, method := AGem(memory=12, recall=12))
    cell.stage(0)
    stage = cell.begin(1)
    cell.model.eval()
    shared = [dict(cell.model.named_parameters())[n] for n in stage.shared_names()]
    old = stage.earlier(0).batch(method.kept[0]["positions"], stage.device)
    r = torch.autograd.grad(stage.loss(old), shared)
    for sign in (1.0, -1.0):  # a gradient along that of the memory, and one against it
        noise = torch.Generator().manual_seed(0)
        for weight, own in zip(shared, r, strict=True):
            weight.grad = sign * own + 0.01 * own.std().nan_to_num() * torch.randn(
                own.shape, generator=noise
            )
        before = [weight.grad.clone() for weight in shared]
        method.edit_gradients(stage)
        dot = sum(float((w.grad * own).sum()) for w, own in zip(shared, r, strict=True))
        size = sum(float(own.square().sum()) for own in r)
        if sign > 0:
            assert all(torch.equal(w.grad, b) for w, b in zip(shared, before, strict=True))
            assert dot > 0.5 * size
        else:
            assert dot == pytest.approx(0.0, abs=1e-4 * size)
    assert stage.log["projected_share"][-1][1] in (0.0, 0.5)


@pytest.mark.parametrize("count", [2, 4])
def test_parts_of_a_draw_weigh_as_many_tokens_as_they_have(generator: Path, count: int) -> None:
    """Answers in the memory have one word and three."""
    totals = []
    for parts in (1, count):
        cell = Cell(generator, method := Replay(memory=6, recall=6))
        cell.tasks = [replace(task_data(1), task=0), replace(task_data(0), task=1)]
        method.after_stage(cell.stage(0))
        cell.context.model.eval()
        stage = cell.stage(1)
        stage.parts, stage.step, total = parts, 1, 0.0
        batch = stage.data.batch(np.arange(8), CPU)
        with torch.no_grad():
            for stage.part, (_, stage.part_share) in enumerate(batch.parts(parts)):
                drawn_ = method.draw_part(stage, "replay")
                total += stage.part_share * float(method.memory_loss(stage, drawn_))
        totals.append(total)
    assert len({row.min() < 0 for row in task_data(1).rows.answers}) == 2
    assert totals[1] == pytest.approx(totals[0], rel=1e-4)


def test_masks_are_drawn_by_seed_and_stage(encoder: Path) -> None:
    def masks(seed: int, index: int) -> torch.Tensor:
        method = Mixout(p=0.5)
        cell = Small(encoder, method, seed=seed)
        cell.begin(index)
        return method._masks.draw(torch.Size([64]))

    drawn_ = [masks(0, 0), masks(1, 0), masks(0, 1)]
    assert torch.equal(masks(0, 0), drawn_[0])
    assert len({tuple(each.tolist()) for each in drawn_}) == 3


def test_additions_of_later_tasks_are_drawn_by_seed_and_stage(encoder: Path) -> None:
    pytest.importorskip("peft")

    def drawn_(seed: int, index: int) -> tuple[float, ...]:
        cell = Small(encoder, Lora(adapters="task"), seed=seed, heads=("a", "b", "c"))
        cell.method.kept = {0: {}}
        cell.begin(index)
        name = next(n for n in weights(cell) if ".lora_A." in n)
        return tuple(weights(cell)[name].flatten().tolist())

    assert drawn_(0, 1) == drawn_(0, 1)
    assert len({drawn_(0, 1), drawn_(1, 1), drawn_(0, 2)}) == 3


def test_the_fisher_information_is_that_of_the_protocols_data_seed(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clbench.methods import quadratic

    recipes: list[Any] = []
    own = quadratic.pretrained_fisher
    monkeypatch.setattr(
        quadratic, "pretrained_fisher", lambda *a, **k: recipes.append(a[3]) or own(*a, **k)
    )
    settings: Any = {"examples": 4, "text_length": 12, "head_steps": 1}
    protocol = SMALL.model_copy(update={"data_seed": 3})
    Small(encoder, EWCMLM(mode="batched", masking="mask", **settings), protocol=protocol)
    (recipe,) = recipes
    assert (recipe.seed, recipe.mode, recipe.masking, recipe.examples) == (3, "batched", "mask", 4)
