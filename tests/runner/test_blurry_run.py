"""Runs with blurry boundaries and one pass over the rows."""

from __future__ import annotations

import pytest
from helpers.workspace import Steps, Workspace

from clbench.core.errors import ClbenchError

BLURRY = """
[[scenario]]
name = "blurry"
shift = "sequence"
tasks = ["mood", "thing"]
head = "{head}"
growing = {growing}
blur = 0.25
online = true
"""


def test_a_growing_head_learns_mixed_rows_in_one_pass(world: Workspace) -> None:
    world.suite.write_text(world.suite.read_text() + BLURRY.format(head="shared", growing="true"))
    listener = Steps()
    run = world.run("out", scenario="blurry", methods=["vanilla"], epochs=3, listener=listener)
    assert not run.failed, run.failed[0].reason
    cell = next(iter(run.cells))
    assert [stage.examples for stage in cell.stages] == [stage.rows for stage in cell.stages]
    assert listener.steps == sum(stage.steps for stage in cell.stages)


def test_own_heads_are_refused_before_training(world: Workspace) -> None:
    world.suite.write_text(world.suite.read_text() + BLURRY.format(head="own", growing="false"))
    with pytest.raises(ClbenchError, match="'blurry': blur moves rows between tasks that share"):
        world.run("out", scenario="blurry", methods=["vanilla"])
