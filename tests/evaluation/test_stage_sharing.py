"""Orders of a sequence that begin alike train their common stages once."""

from __future__ import annotations

from typing import Any

import pytest
from workspace import Steps, Workspace, measured

ORDERS = """
[[scenario]]
name = "run"
shift = "sequence"

[scenario.orders]
one = ["mood", "thing", "mood-upside-down"]
two = ["mood", "mood-upside-down", "thing"]
short = ["mood", "thing"]
"""
STAGE = 20
"""Steps of a stage."""


@pytest.fixture
def orders(world: Workspace) -> Workspace:
    world.suite.write_text(world.suite.read_text() + ORDERS)
    return world


def steps(world: Workspace, out: str, scenario: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """Return the steps that a run trained, and its results."""
    listener = Steps()
    run = world.run(out, scenario=scenario, epochs=1, listener=listener, **options)
    assert not run.failed, run.failed[0].reason
    return listener.steps, measured(run)


def test_common_first_stages_are_trained_once(orders: Workspace) -> None:
    methods = ["ewc", "l2-sp"]
    single: dict[str, Any] = {}
    for order in ("run-one", "run-two", "run-short"):
        single |= steps(orders, order, order, methods=methods)[1]
    count, together = steps(orders, "all", "run-*", methods=methods)
    assert together == single
    assert count == ((3 + 3) + (2 + 2) + 0) * STAGE
    assert not list((orders.folder / "all" / "stages").glob("run-*"))


@pytest.mark.parametrize(
    ("method", "keep", "left"),
    [
        ("ewc", True, 1 / 3),
        ("ewc", False, 2 / 3),
        ("o-lora", True, 1 / 3),
        ("lora-task", True, 1 / 3),
        ("progressive-prompts", True, 1 / 3),
        ("packnet", True, 1 / 3),
        ("osf", True, 2 / 3),  # its share depends on the number of tasks
    ],
)
def test_a_longer_order_goes_on_from_the_last_stage(
    orders: Workspace, method: str, keep: bool, left: float
) -> None:
    whole, expected = steps(orders, "whole", "run-one", methods=[method])
    steps(orders, "both", "run-short", methods=[method], keep_stages=keep)
    count, results = steps(orders, "both", "run-one", methods=[method])
    assert count == pytest.approx(left * whole)
    assert results == expected
