from __future__ import annotations

import math

import pytest
import torch

from clbench.training.protocol import Protocol
from clbench.training.schedule import make_schedule, rate_factor, warming


def factors(kind: str, warmup: int, steps: int) -> list[float]:
    return [rate_factor(s, kind=kind, warmup_steps=warmup, steps=steps) for s in range(steps + 1)]


def test_cosine_by_hand() -> None:
    expected = [0, 0.5, 1] + [0.5 * (1 + math.cos(math.pi * s / 8)) for s in range(1, 9)]
    assert factors("cosine", 2, 10) == pytest.approx(expected)


def test_linear_and_constant_by_hand() -> None:
    assert factors("linear", 2, 6) == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25, 0])
    assert factors("constant", 2, 4) == [0, 0.5, 1, 1, 1]


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_as_transformers_has_it(kind: str) -> None:
    from transformers import get_scheduler

    def rates(ours: bool) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        schedule = (
            make_schedule(optimizer, kind, 0.1, 37)
            if ours
            else get_scheduler(kind, optimizer, math.ceil(3.7), 37)
        )
        found = []
        for _ in range(37):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    assert rates(True) == pytest.approx(rates(False), abs=1e-12)


def test_the_last_step_never_warms_up() -> None:
    assert [warming(0.1, steps) for steps in (1, 2, 10, 11, 100)] == [0, 1, 1, 2, 10]
    assert warming(0.99, 10) == 9
    assert warming(0.0, 1) == 0


def test_stage_length() -> None:
    protocol = Protocol(epochs=3, task_epochs={"glue/sst2": 5}, task_steps={"glue/rte": 7})
    assert protocol.stage_length("glue/qnli", 100) == (21, 7)
    assert protocol.stage_length("glue/sst2[short]", 16) == (5, 1)
    assert protocol.stage_length("glue/rte", 100) == (7, 7)
    assert Protocol(steps=11).stage_length("a", 100) == (11, 7)
