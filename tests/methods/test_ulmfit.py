"""ULMFiT's rates and unfreezing against the paper's formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.cell import PROTOCOL, Cell, differ, weights

from clbench.methods.by_depth import Ulmfit, depth_groups, slanted_triangle
from clbench.training.engine import Probe, train_stage


def as_printed(t: int, steps: int, cut_frac: float = 0.1, ratio: float = 32.0) -> float:
    cut = int(steps * cut_frac)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
    return (1 + p * (ratio - 1)) / ratio


def test_slanted_triangle_equals_equation_3() -> None:
    for steps in (10, 100, 320):
        for t in range(steps):
            factor = slanted_triangle(t, steps=steps, cut_frac=0.1, ratio=32.0)
            assert factor == pytest.approx(as_printed(t, steps), rel=1e-12)
    assert slanted_triangle(0, steps=100, cut_frac=0.1, ratio=32.0) == 1 / 32
    assert slanted_triangle(5, steps=100, cut_frac=0.1, ratio=32.0) == (1 + 31 / 2) / 32
    assert slanted_triangle(10, steps=100, cut_frac=0.1, ratio=32.0) == 1.0


@pytest.mark.parametrize("steps", [1, 2, 7, 19])
def test_slanted_triangle_stays_above_the_lowest_rate(steps: int) -> None:
    assert as_printed(18, 19) < 0  # the printed formula goes below 0 if the cut is rounded
    factors = [slanted_triangle(t, steps=steps, cut_frac=0.1, ratio=32.0) for t in range(steps)]
    assert min(factors) >= 1 / 32
    assert max(factors) <= 1.0


def test_rates_fall_by_2_6_per_group(folder: Path) -> None:
    cell = Cell(folder, Ulmfit())
    stage = cell.open(0)
    groups = cell.method.parameter_groups(stage)
    assert [group["lr"] for group in groups] == [1e-3 / 2.6**depth for depth in range(5)]
    names = {id(parameter): name for name, parameter in cell.model.named_parameters()}
    first = [names[id(group["params"][0])] for group in groups]
    assert [name.partition(".attention")[0] for name in first] == [
        "heads.t0.weight",
        *(f"backbone.encoder.layer.{i}" for i in (2, 1, 0)),
        "backbone.embeddings.word_embeddings.weight",
    ]


def test_scaled_unfreezing_goes_down_in_equal_parts(folder: Path) -> None:
    cell = Cell(folder, Ulmfit())
    stage, trace = cell.stage(0)
    # Six steps, five groups: group d joins at step floor(6·d/5).
    assert trace.curves["trained_groups"] == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    now = weights(cell)
    assert all(not torch.equal(now[name], cell.start[name]) for name in cell.start)
    assert len(depth_groups(stage)) == 5


def test_frozen_groups_keep_every_bit(folder: Path) -> None:
    protocol = PROTOCOL.model_copy(update={"weight_decay": 0.1})
    cell = Cell(folder, Ulmfit(unfreezing="epochs"), protocol=protocol)
    _, trace = cell.stage(0)
    # Two epochs of three steps: the head alone, then the top layer as well.
    assert trace.curves["trained_groups"] == [[0, 1], [3, 2]]
    now = weights(cell)
    moved = {name for name, start in cell.start.items() if not torch.equal(now[name], start)}
    assert moved == {name for name in cell.start if ".layer.2." in name}
    assert all(parameter.requires_grad for parameter in cell.model.parameters())
    assert all(parameter.grad is None for parameter in cell.model.parameters())


def test_no_unfreezing_trains_all_groups_at_once(folder: Path) -> None:
    _, trace = Cell(folder, Ulmfit(unfreezing="none")).stage(0)
    assert trace.curves["trained_groups"] == [[0, 5]]


def test_scoring_along_the_way_changes_nothing(folder: Path) -> None:
    plain, scored = (
        Cell(folder, Ulmfit(), protocol=PROTOCOL.model_copy(update={"curve_points": 6}))
        for _ in range(2)
    )

    def score() -> dict[str, float]:
        scored.model.eval()
        return {}

    train_stage(plain.open(0), plain.method)
    train_stage(scored.open(0), scored.method, probe=Probe(score, 1))
    assert not differ(plain, scored)
