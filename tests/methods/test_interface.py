"""Sketches of the methods to come, to show that the hooks carry them all.

Each is the bare idea, not the method; what is tested is that it needs nothing from the
engine and does what its kind of method does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from cell import Cell, differ, weights
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from clbench.methods.base import Method, Phase
from clbench.methods.vanilla import Vanilla
from clbench.training.batches import Batch, TaskData
from clbench.training.stage import Context, Stage


def test_vanilla_repeats_and_moves(folder: Path, vanilla: Cell) -> None:
    again = Cell(folder, Vanilla()).run()
    assert not differ(vanilla, again)
    assert vanilla.moved() > 0


class Recall(torch.optim.Optimizer):
    """Adam's place taken by an optimizer of one's own: descend, then interpolate."""

    def __init__(self, groups: Any, anchors: list[Tensor], pull: float) -> None:
        super().__init__(groups, {"lr": 1e-3})
        self.anchors, self.pull = anchors, pull

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter, anchor in zip(group["params"], self.anchors, strict=False):
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])
                    parameter.lerp_(anchor, self.pull)


class RecAdamSketch(Method):
    """Own optimizer, backbone from random weights, anchor at the pretrained ones."""

    pull: float = 0.2

    def setup(self, context: Context) -> None:
        self.anchor = context.snapshot()
        context.model.randomise_backbone(3)

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> Recall:
        names = {id(p): n for n, p in stage.model.named_parameters()}
        params = groups[0]["params"]
        anchors = [self.anchor.get(names[id(p)], p.detach().clone()) for p in params]
        return Recall(groups, anchors, self.pull)


def test_recadam(folder: Path) -> None:
    method = RecAdamSketch()
    cell = Cell(folder, method)
    before = float(cell.context.squared_distance(method.anchor).detach())
    cell.run()
    # Twelve steps of a pull of 0.2 leave 0.8^12 of the way, squared: under half a per cent.
    assert float(cell.context.squared_distance(method.anchor).detach()) < 0.01 * before


class EwcSketch(Method):
    """Importance taken after a stage; the pull added to gradients, or as a penalty."""

    strength: float = 100.0
    to_gradient: bool = True

    def acts_in(self, index: int) -> bool:
        return index > 0

    def after_stage(self, stage: Stage) -> None:
        stage.model.eval()
        names = stage.shared_names()
        parameters = dict(stage.model.named_parameters())
        self.anchor = stage.snapshot(names)
        self.fisher = {name: torch.zeros_like(parameters[name]) for name in names}
        for batch in stage.batches("fisher", batch_size=1):
            stage.model.zero_grad()
            stage.loss(batch).backward()
            for name in names:
                gradient = parameters[name].grad
                if gradient is not None:
                    self.fisher[name] += gradient.square() / len(stage.data.rows)
        stage.model.zero_grad()

    def pull(self, stage: Stage) -> dict[str, Tensor]:
        now = dict(stage.model.named_parameters())
        return {n: self.fisher[n] * (now[n] - self.anchor[n]) for n in self.anchor}

    def penalty(self, stage: Stage) -> Tensor | None:
        if self.to_gradient or stage.index == 0:
            return None
        now = dict(stage.model.named_parameters())
        terms = [(self.fisher[n] * (now[n] - a).square()).sum() for n, a in self.anchor.items()]
        return self.strength * torch.stack(terms).sum()

    @torch.no_grad()
    def edit_gradients(self, stage: Stage) -> None:
        if not self.to_gradient or stage.index == 0:
            return
        parameters = dict(stage.model.named_parameters())
        for name, value in self.pull(stage).items():
            gradient = parameters[name].grad
            assert gradient is not None
            gradient.add_(value, alpha=2 * self.strength)


def test_ewc_by_gradient_equals_ewc_by_penalty(folder: Path, vanilla: Cell) -> None:
    by_gradient = Cell(folder, EwcSketch()).run()
    by_penalty = Cell(folder, EwcSketch(to_gradient=False)).run()
    for name, value in weights(by_gradient).items():
        torch.testing.assert_close(value, weights(by_penalty)[name], rtol=1e-3, atol=2e-5)
    assert differ(by_gradient, vanilla)


class AGemSketch(Method):
    """Edits gradients with rows that it kept."""

    keeps_rows: ClassVar[bool] = True

    def edit_gradients(self, stage: Stage) -> None:
        if stage.index == 0:
            return
        old = stage.earlier(0).batch(np.arange(4), stage.device)
        parameters = [p for p in stage.model.backbone_parameters().values() if p.grad is not None]
        mine = [p.grad for p in parameters]
        reference = torch.autograd.grad(stage.loss(old), parameters)
        dot = torch.stack([(g * r).sum() for g, r in zip(mine, reference, strict=True)]).sum()
        if dot < 0:
            norm = torch.stack([r.square().sum() for r in reference]).sum()
            for gradient, r in zip(mine, reference, strict=True):
                gradient.sub_(r * (dot / norm))
        after = torch.stack([(g * r).sum() for g, r in zip(mine, reference, strict=True)]).sum()
        stage.record("dot", after)


def test_a_gem(folder: Path) -> None:
    cell = Cell(folder, AGemSketch())
    cell.stage(0)
    stage, _ = cell.stage(1)
    assert len(stage.log["dot"]) == 6
    assert all(value >= -1e-4 for _, value in stage.log["dot"])


class MixoutSketch(Method):
    """Other weights in the forward pass, gradients to the real ones."""

    rate: float = 0.7

    def setup(self, context: Context) -> None:
        self.anchor = context.snapshot()

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        mixed = {}
        for name, value in stage.model.backbone_parameters().items():
            keep = torch.rand(value.shape, generator=stage.rng("mixout")) >= self.rate
            mask = keep.to(value.dtype)
            anchor = self.anchor[name]
            mixed[name] = (mask * value + (1 - mask) * anchor - self.rate * anchor) / (
                1 - self.rate
            )
        return stage.loss(batch, weights=mixed)


class SmartSketch(Method):
    """A second forward pass on disturbed embeddings."""

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        plain = stage.logits(batch)
        embedded = stage.model.embed(batch.inputs["input_ids"])
        noise = torch.randn(embedded.shape, generator=stage.rng("noise")) * 0.1
        other = stage.logits(batch, inputs_embeds=embedded + noise)
        difference = nn.functional.mse_loss(other, plain)
        stage.record("smoothness", difference)
        return stage.criterion(plain, batch) + difference


class LoraSketch(Method):
    """Wraps modules of the model before training."""

    def setup(self, context: Context) -> None:
        context.model.backbone.requires_grad_(False)
        for layer in context.model.backbone.encoder.layer:
            layer.attention.self.query = LowRank(layer.attention.self.query)


class LowRank(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.full((2, inner.in_features), 0.1))
        self.up = nn.Parameter(torch.zeros(inner.out_features, 2))

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values) + values @ self.down.T @ self.up.T


def test_lora(folder: Path) -> None:
    cell = Cell(folder, LoraSketch())
    cell.run()
    layer = cell.model.backbone.encoder.layer[0].attention.self.query
    assert layer.up.abs().max() > 0
    assert torch.equal(
        layer.inner.weight, cell.start["backbone.encoder.layer.0.attention.self.query.inner.weight"]
    )


class PackNetSketch(Method):
    """Two phases a stage, weights held after steps, other weights to score old tasks with."""

    def setup(self, context: Context) -> None:
        self.masks: list[Tensor] = []
        self._weight = context.model.backbone.encoder.layer[0].output.dense.weight

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [Phase("train"), Phase("retrain", steps=3)]

    def before_phase(self, stage: Stage) -> None:
        if stage.phase == 1:
            taken = sum(self.masks, torch.zeros_like(self._weight, dtype=torch.bool))
            free = self._weight.detach().abs().masked_fill(taken, 0)
            self.masks.append(free > free.median())
            with torch.no_grad():
                self._weight.mul_((taken | self.masks[-1]).float())

    @contextmanager
    def scoring(self, task: int) -> Iterator[None]:
        whole = self._weight.detach().clone()
        used = sum(self.masks[: task + 1], torch.zeros_like(whole, dtype=torch.bool))
        with torch.no_grad():
            self._weight.mul_(used.float())
        yield
        with torch.no_grad():
            self._weight.copy_(whole)


def test_packnet(folder: Path) -> None:
    method = PackNetSketch()
    cell = Cell(folder, method).run()
    assert [trace.steps for trace in cell.traces] == [6 + 3, 6 + 3]
    before = method._weight.detach().clone()
    with method.scoring(0):
        assert (method._weight != 0).float().mean() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(method._weight, before)


class ReplaySketch(Method):
    """Other rows beside the stage's own."""

    keeps_rows: ClassVar[bool] = True

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        return [stage.earlier(j) for j in range(stage.index + 1)]


def test_replay_and_multitask(folder: Path) -> None:
    cell = Cell(folder, ReplaySketch())
    cell.stage(0)
    head = cell.model.head("t0").weight.detach().clone()
    _, trace = cell.stage(1)
    assert (trace.rows, trace.steps, trace.examples) == (24, 12, 48)
    assert not torch.equal(cell.model.head("t0").weight, head)


class UlmfitSketch(Method):
    """Rates and schedules by group, unfreezing from the top."""

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        every = dict(stage.model.named_parameters())
        heads = {n for head in stage.heads for n in stage.model.head_parameter_names(head)}
        groups = []
        for depth, group in enumerate(reversed(stage.model.layer_groups())):
            names = [n for n in group.parameters if n.startswith("backbone.") or n in heads]
            if names:
                lr = stage.protocol.lr / 2.6**depth
                groups.append({"params": [every[n] for n in names], "lr": lr})
        return groups

    def schedule(self, stage: Stage, optimizer: torch.optim.Optimizer) -> LambdaLR:
        def unfrozen(depth: int) -> Any:
            return lambda step: float(step >= depth * stage.steps / len(optimizer.param_groups))

        return LambdaLR(optimizer, [unfrozen(d) for d in range(len(optimizer.param_groups))])


def test_ulmfit(folder: Path) -> None:
    cell = Cell(folder, UlmfitSketch()).run()
    now = weights(cell)
    low = "backbone.embeddings.position_embeddings.weight"
    top = "backbone.encoder.layer.2.output.dense.weight"
    assert (now[low] - cell.start[low]).abs().max() < (now[top] - cell.start[top]).abs().max() / 10


class SiSketch(Method):
    """Follows the path of the weights, step by step."""

    def before_stage(self, stage: Stage) -> None:
        self.omega = {n: torch.zeros_like(p) for n, p in stage.model.backbone_parameters().items()}

    def edit_gradients(self, stage: Stage) -> None:
        self._gradients = {
            n: p.grad.clone()
            for n, p in stage.model.backbone_parameters().items()
            if p.grad is not None
        }
        self._before = stage.snapshot()

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        for name, p in stage.model.backbone_parameters().items():
            if name in self._gradients:
                self.omega[name] -= self._gradients[name] * (p - self._before[name])


def test_si(folder: Path, vanilla: Cell) -> None:
    cell = Cell(folder, SiSketch()).run()
    assert not differ(cell, vanilla)  # it only looks on
    assert sum(float(o.sum()) for o in cell.method.omega.values()) > 0  # type: ignore[attr-defined]
    assert "_before" not in cell.method.state()


@pytest.mark.parametrize("kind", [MixoutSketch, SmartSketch, AGemSketch, UlmfitSketch])
def test_sketches_train_and_differ_from_vanilla(
    folder: Path, vanilla: Cell, kind: type[Method]
) -> None:
    first, second = Cell(folder, kind()).run(), Cell(folder, kind()).run()
    assert differ(first, vanilla)
    assert not differ(first, second)
    assert all(torch.isfinite(value).all() for value in weights(first).values())


def test_snapshots_are_copies(folder: Path) -> None:
    cell = Cell(folder, Vanilla())
    kept = copy.deepcopy(cell.start)
    cell.run()
    assert all(torch.equal(cell.start[name], kept[name]) for name in kept)
