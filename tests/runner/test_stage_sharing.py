"""Orders of a sequence that begin alike train their common stages once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from helpers.workspace import Steps, Workspace, measured

from clbench.methods.base import Vanilla
from clbench.runner.cell_stages import CellStages

ORDERS = """
[[scenario]]
name = "run"
shift = "sequence"

[scenario.orders]
one = ["mood", "thing", "mood-upside-down"]
two = ["mood", "mood-upside-down", "thing"]
short = ["mood", "thing"]
"""
GROWING = """
[task.size]
train = "size.csv"
validation_fraction = 0.3
text = "text"
label = "label"

[[scenario]]
name = "grow"
shift = "sequence"
head = "shared"
growing = true

[scenario.orders]
one = ["mood", "thing", "size"]
short = ["mood", "thing"]
"""
ROWS, STAGE = 40, 5
"""Training rows and steps of a stage."""


@pytest.fixture
def orders(world: Workspace) -> Workspace:
    world.suite.write_text(world.suite.read_text() + ORDERS)
    return world


def steps(world: Workspace, out: str, scenario: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """Return the steps that a run trained, and its results."""
    listener = Steps()
    run = world.run(out, scenario=scenario, epochs=1, limit=ROWS, listener=listener, **options)
    assert not run.failed, run.failed[0].reason
    return listener.steps, measured(run)


@pytest.mark.slow
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


def test_a_kept_stage_serves_several_longer_orders(orders: Workspace) -> None:
    steps(orders, "both", "run-short", keep_stages=True)
    folder = orders.folder / "both" / "stages"
    kept = {path.name for path in folder.iterdir()}
    for keep in (False, True):
        count, _ = steps(orders, "both", "run-one", keep_stages=keep)
        assert count == STAGE
        (orders.folder / "both" / "cells" / "run-one--vanilla--seed0.json").unlink()
        assert kept <= {path.name for path in folder.iterdir()}
    # Its own stages are removed, but for the first, which is vanilla's, and the last.
    assert len({*folder.iterdir()}) == len(kept) + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "trained"),
    [
        ("vanilla", 1),
        ("lwf", 1),
        ("frozen", 1),
        ("l2-sp", 3),  # which pulls outputs that are not used yet, too
        ("ewc", 2),  # which keeps tensors of the head's size; its first stage is vanilla's
        ("mofo", 3),  # which moves a share of the whole head
        ("seq-star", 3),  # which has a head of its own
    ],
)
def test_a_head_that_grows_further_goes_on_from_the_last_stage(
    world: Workspace, method: str, trained: int
) -> None:
    rows = (world.folder / "mood.csv").read_text().replace(",up", ",big").replace(",down", ",small")
    world.write("size.csv", rows)
    text = world.suite.read_text().replace("[protocol]", "[protocol]\ntrim_embeddings = false")
    world.suite.write_text(text + GROWING)
    _, expected = steps(world, "whole", "grow-one", methods=[method])
    steps(world, "both", "grow-short", methods=[method], keep_stages=True)
    run = world.run("both", scenario="grow-one", epochs=1, limit=ROWS, methods=[method])
    assert measured(run) == expected
    assert sum(not stage.cached for stage in run.cells[0].stages) == trained


def test_a_subclass_of_vanilla_is_not_vanilla() -> None:
    """It inherits the name, unless it is registered, and may change the model in `setup`."""

    class Mine(Vanilla):
        pass

    def is_vanilla(method: Any) -> bool:
        cell: Any = SimpleNamespace(method=method)
        return bool(CellStages.is_vanilla.__get__(cell))

    assert Mine.name == Vanilla.name
    assert (is_vanilla(Vanilla()), is_vanilla(Mine())) == (True, False)
