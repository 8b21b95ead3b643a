"""The controls low-rate, early-stop and wise-ft, against vanilla and numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cell import PROTOCOL, Cell, differ, weights

from clbench.methods.base import EarlyStop, LowRate, Vanilla
from clbench.methods.merging import WiseFT
from clbench.suite.baselines import read_baseline
from clbench.training.stage import Stage


class Recorded(EarlyStop):
    """Records the rate of every step."""

    def setup(self, context: Any) -> None:
        self.rates: list[float] = []

    def schedule(self, stage: Stage, optimizer: Any) -> Any:
        self._optimizer = optimizer
        return super().schedule(stage, optimizer)

    def before_step(self, stage: Stage) -> None:
        self.rates.append(self._optimizer.param_groups[0]["lr"])


class Stopped(Vanilla):
    """Vanilla that keeps the weights of stage 1 after three steps."""

    def after_step(self, stage: Stage) -> None:
        if (stage.index, stage.step) == (1, 2):
            self.weights = {n: p.detach().clone() for n, p in stage.model.named_parameters()}


def test_the_low_rate_is_the_mean_of_the_published_multiples() -> None:
    multiples = read_baseline("bertcl-combined").settings["multiples"]
    mean = math.prod(multiples) ** (1 / len(multiples))
    assert read_baseline("low-rate").settings == {"lr_multiple": pytest.approx(mean, rel=1e-9)}


def test_the_rate_of_a_method_is_that_of_the_protocol(folder: Path, vanilla: Cell) -> None:
    low = Cell(folder, Vanilla(lr_multiple=0.25)).run()
    slow = PROTOCOL.model_copy(update={"lr": 0.25 * PROTOCOL.lr})
    for other in (Vanilla(lr=slow.lr), Vanilla(lr=2 * slow.lr, lr_multiple=0.5)):
        assert not differ(low, Cell(folder, other).run())
    assert not differ(low, Cell(folder, Vanilla(), protocol=slow).run())
    assert differ(low, vanilla)


def test_early_stop_ends_where_vanilla_is_at_that_step(folder: Path) -> None:
    stopped = Cell(folder, Stopped()).run()
    cell = Cell(folder, EarlyStop())
    first = Cell(folder, Vanilla())  # the engine trains stage 0 as vanilla, as acts_in says
    first.stage(0)
    cell.model.load_state_dict(first.model.state_dict())
    _, trace = cell.stage(1)
    assert (trace.steps, trace.examples) == (3, 12)  # half of six steps with four rows each
    assert all(torch.equal(v, stopped.method.weights[n]) for n, v in weights(cell).items())
    assert [EarlyStop().acts_in(i) for i in (0, 1, 2)] == [False, True, True]


def test_early_stop_keeps_the_schedule_of_the_whole_stage(folder: Path) -> None:
    protocol = PROTOCOL.model_copy(update={"warmup": 0.0, "schedule": "linear"})
    cell = Cell(folder, Recorded(share=0.7), protocol=protocol)
    _, trace = cell.stage(1)
    # 4 of 6 steps: 0.7 of 6 is 4.2. The rate falls by a sixth a step.
    assert cell.method.rates == pytest.approx([1e-3 * (1 - i / 6) for i in range(4)])
    assert trace.steps == 4


def test_early_stop_trains_at_least_one_step(folder: Path) -> None:
    _, trace = Cell(folder, EarlyStop(share=0.01)).stage(1)
    assert trace.steps == 1


def test_wise_ft_may_average_with_the_pretrained_weights(folder: Path) -> None:
    cell = Cell(folder, WiseFT(alpha=0.25, first=True), heads=("a", "b"))
    before = weights(cell)
    stage, _ = cell.train(0)
    after = weights(cell)
    cell.method.after_stage(stage)
    for name, value in weights(cell).items():
        old, new = before[name].double(), after[name].double()
        expected = 0.75 * old + 0.25 * new if name.startswith("backbone.") else new
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-8)


def averaged(folder: Path, alpha: float | list[float], heads: tuple[str, str]) -> Iterator[Any]:
    """Yield name, weight before and after stage 1, and the weight that WiSE-FT gives."""
    cell = Cell(folder, WiseFT(alpha=alpha), heads=heads)
    cell.stage(0)
    before = weights(cell)
    stage, _ = cell.train(1)
    after = weights(cell)
    cell.method.after_stage(stage)
    for name, value in weights(cell).items():
        yield name, before[name].double(), after[name].double(), value.double()


def test_wise_ft_averages_the_backbone_and_no_head_of_one_task(folder: Path) -> None:
    for name, before, after, value in averaged(folder, 0.25, ("a", "b")):
        expected = 0.75 * before + 0.25 * after if name.startswith("backbone.") else after
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-8)
        if name.startswith("heads.a."):
            assert torch.equal(before, value)
        if name.startswith("heads.b.") or "query.weight" in name:
            assert not torch.equal(before, value)


def test_wise_ft_averages_a_shared_head(folder: Path) -> None:
    for _, before, after, value in averaged(folder, 0.25, ("a", "a")):
        torch.testing.assert_close(value, 0.75 * before + 0.25 * after, rtol=1e-6, atol=1e-8)


def test_wise_ft_averages_by_depth(folder: Path) -> None:
    """Five shares for three layers: each layer has its own."""
    shares = {"embeddings": 0.0, "layer.0": 0.25, "layer.1": 0.5, "layer.2": 1.0, "heads": 0.75}
    for name, before, after, value in averaged(folder, [*shares.values()], ("a", "a")):
        (share,) = (share for part, share in shares.items() if f"{part}." in name)
        torch.testing.assert_close(
            value, (1 - share) * before + share * after, rtol=1e-6, atol=1e-8
        )


def test_wise_ft_goes_on_from_the_average(folder: Path) -> None:
    """After three stages w is ((w1 + w2)/2 + w3)/2, each trained from the average before it."""
    cell = Cell(folder, WiseFT(alpha=0.5), heads=("a", "b", "a"))
    cell.stage(0)
    expected = weights(cell)["backbone.encoder.layer.0.output.dense.weight"].double()
    for index in (1, 2):
        stage, _ = cell.train(index)
        trained = weights(cell)["backbone.encoder.layer.0.output.dense.weight"].double()
        cell.method.after_stage(stage)
        expected = (expected + trained) / 2
    now = weights(cell)["backbone.encoder.layer.0.output.dense.weight"].double()
    torch.testing.assert_close(now, expected, rtol=1e-6, atol=1e-8)


def test_wise_ft_keeps_new_classes_of_a_growing_head(folder: Path) -> None:
    cell = Cell(folder, WiseFT(alpha=0.25), heads=("a", "a"))
    cell.stage(0)
    before = weights(cell)
    stage, _ = cell.train(1)
    after = weights(cell)
    stage.shown_before = {"a": 1}
    cell.method.after_stage(stage)
    for name in ("heads.a.weight", "heads.a.bias"):
        old, new = weights(cell)[name]
        torch.testing.assert_close(old, 0.75 * before[name][0] + 0.25 * after[name][0])
        assert torch.equal(new, after[name][1])


def test_wise_ft_is_vanilla_at_1_and_the_stage_before_at_0(folder: Path, vanilla: Cell) -> None:
    assert not differ(Cell(folder, WiseFT(alpha=1.0)).run(), vanilla)
    for name, before, _, value in averaged(folder, 0.0, ("a", "b")):
        assert torch.equal(before, value) == (not name.startswith("heads.b."))


@pytest.mark.parametrize(
    ("multiple", "steps"), [(1.0, 6), ("inverse", 24), (0.5, 3), (0.01, 1), (2.0, 12)]
)
def test_a_low_rate_gets_more_steps(folder: Path, multiple: Any, steps: int) -> None:
    """The stage has six steps, and the rate is a fourth."""
    cell = Cell(folder, LowRate(lr_multiple=0.25, steps_multiple=multiple))
    _, trace = cell.train(0)
    assert trace.steps == steps
    assert cell.context.protocol.lr == 0.25 * PROTOCOL.lr
    # The schedule is that of a stage of this length.
    if multiple == "inverse":
        protocol = PROTOCOL.model_copy(update={"epochs": 8})
        plain = Cell(folder, Vanilla(lr_multiple=0.25), protocol=protocol)
        plain.train(0)
        assert not differ(cell, plain)


def test_a_low_rate_of_the_usual_length_is_vanilla_in_cells_of_earlier_versions() -> None:
    assert LowRate().settings() == {"lr": None, "lr_multiple": 0.1519074799}
    assert [LowRate().acts_in(0), LowRate(steps_multiple="inverse").acts_in(0)] == [False, True]
