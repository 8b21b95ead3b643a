from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from clbench.training.protocol import Protocol


def factors(steps: int, **settings: Any) -> list[float]:
    protocol = Protocol(**settings)
    return [protocol.rate_factor(step, steps) for step in range(steps + 1)]


def test_cosine_begins_after_the_warm_up() -> None:
    expected = [0, 0.5, 1] + [0.5 * (1 + math.cos(math.pi * s / 8)) for s in range(1, 9)]
    assert factors(10, warmup=0.2) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "rows", "scored", "steps"),
    [
        ({"limit": 1000}, 100, 50, 20),  # 3 epochs of 100 rows are 21 batches
        ({"limit": 1000, "scored_limit": 300}, 100, 30, 20),
        ({"limit": 30, "scored_limit": 10}, 30, 10, 20),  # never more than the suite has
        ({"limit": 100, "steps": 50}, 40, 20, 5),
        ({"limit": 100, "task_steps": {"a": 5000}}, 40, 20, 20),
        ({"limit": 100, "epochs": 1, "batch_size": 32}, 40, 20, 4),
        ({}, 200, 50, 20),
        ({"limit": 100, "limit_per": "class"}, 10, 10, 20),
    ],
)
def test_a_smoke_run_takes_a_tenth(settings: Any, rows: int, scored: int, steps: int) -> None:
    protocol = Protocol(smoke=True, **settings)
    assert (protocol.limits["limit"], protocol.limits["scored"]) == (rows, scored)
    assert protocol.stage_length("a[short]", 100)[0] == steps
    assert "smoke" not in Protocol(**settings).model_dump()


def test_linear_and_constant_schedules() -> None:
    linear = factors(6, schedule="linear", warmup=0.3)
    assert linear == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25, 0])
    assert factors(4, schedule="constant", warmup=0.5) == [0, 0.5, 1, 1, 1]


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_schedules_equal_those_of_transformers(kind: Any) -> None:
    protocol = Protocol(schedule=kind)

    def rates(ours: bool) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        schedule = (
            LambdaLR(optimizer, lambda step: protocol.rate_factor(step, 37))
            if ours
            else get_scheduler(kind, optimizer, math.ceil(3.7), 37)
        )
        values = []
        for _ in range(37):
            values.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return values

    assert rates(True) == pytest.approx(rates(False), abs=1e-12)


def test_the_last_step_never_warms_up() -> None:
    assert factors(1) == [1.0, 0.0]
    assert [Protocol(warmup=0.99).rate_factor(step, 10) for step in (0, 8, 9)] == [0, 8 / 9, 1]


def test_stage_length_of_tasks_and_their_parts() -> None:
    protocol = Protocol(epochs=3, task_epochs={"glue/sst2": 5}, task_steps={"glue/rte": 7})
    assert protocol.stage_length("glue/qnli", 100) == (21, 7)
    assert protocol.stage_length("glue/sst2[short]", 16) == (5, 1)
    assert protocol.stage_length("glue/rte", 100) == (7, 7)
    assert Protocol(steps=11).stage_length("a", 100) == (11, 7)
