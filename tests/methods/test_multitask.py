from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.cell import PROTOCOL, Cell, differ, weights

from clbench.methods.base import Method
from clbench.methods.class_means import ICaRL
from clbench.methods.replay import Multitask
from clbench.training.protocol import Protocol


def test_a_stage_lasts_as_long_as_all_its_tasks(folder: Path) -> None:
    cell = Cell(folder, Multitask(), heads=("a", "b", "a")).run()
    # Twelve rows a task, batches of four, two epochs.
    assert [(t.rows, t.steps, t.examples) for t in cell.traces] == [
        (12, 6, 24),
        (24, 12, 48),
        (36, 18, 72),
    ]


@pytest.mark.parametrize("method", [Multitask(), ICaRL(memory=7)])
def test_a_pass_has_every_row_where_batches_of_several_tasks_do_not_fill(
    folder: Path, method: Method
) -> None:
    changes = {"batch_size": 5, "task_batch_size": {"t0": 4}, "curve_points": 0}
    protocol = Protocol(**{**PROTOCOL.model_dump(), **changes})
    cell = Cell(folder, method, heads=("a", "b", "a"), protocol=protocol).run()
    for record in cell.traces:
        assert (record.examples, record.epochs) == (2 * record.rows, 2.0)


def test_lengths_follow_the_epochs_of_each_task(folder: Path) -> None:
    protocol = Protocol(
        **{**PROTOCOL.model_dump(), "task_epochs": {"t0": 1, "t1": 3}, "curve_points": 0}
    )
    cell = Cell(folder, Multitask(), protocol=protocol)
    assert [cell.stage(index)[1].steps for index in range(2)] == [3, 3 + 9]


def test_each_stage_starts_from_the_pretrained_weights(folder: Path) -> None:
    """Joint training on both tasks is the same with and without a first stage."""
    with_first = Cell(folder, Multitask()).run()
    without = Cell(folder, Multitask())
    without.stage(1)
    assert not differ(with_first, without)


def test_every_head_is_trained(folder: Path) -> None:
    cell = Cell(folder, Multitask())
    before = weights(cell)
    cell.stage(1)
    after = weights(cell)
    for name in ("heads.t0.weight", "heads.t1.weight"):
        assert not torch.equal(before[name], after[name])


def test_acts_in_every_stage_but_the_first() -> None:
    method = Multitask()
    assert not method.acts_in(0)
    assert method.acts_in(1)
    assert method.state() == {}
