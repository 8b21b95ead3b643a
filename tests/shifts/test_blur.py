"""Blurry boundaries and one pass over the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clbench.core.errors import ShiftError
from clbench.shifts.dataset import blurred
from clbench.tasks.task import Rows, Task


def tasks(*sizes: int, growing: bool = False, pairs: bool = False) -> list[Task]:
    """Return tasks with one head; task i has texts ``i.0``, ``i.1``, … of class i."""
    made = []
    for i, size in enumerate(sizes):
        texts = [f"{i}.{row}" for row in range(size)]
        rows = Rows.of(texts, texts if pairs else None, [i] * size)
        labels = tuple(f"class {j}" for j in range(len(sizes)))
        seen = i + 1 if growing else None
        made.append(Task(f"t{i}", labels, ("accuracy",), rows, rows, "h", own=(i,), seen=seen))
    return made


def origins(task: Task) -> list[int]:
    """Return how many of a task's training rows come from each of three tasks."""
    return np.bincount([int(text[0]) for text in task.train.first], minlength=3).tolist()


def test_rows_move_to_neighbours_half_to_each_and_none_is_lost() -> None:
    given = tasks(20, 40, 10)
    mixed = blurred(given, 0.2, 0, "s")
    # 4 of 20 go on; 8 of 40 go 4 back and 4 on; 2 of 10 go back.
    assert [origins(task) for task in mixed] == [[16, 4, 0], [4, 32, 2], [0, 4, 8]]
    texts = sorted(text for task in mixed for text in task.train.first)
    assert texts == sorted(text for task in given for text in task.train.first)
    for task in mixed:
        assert [f"class {text[0]}" for text in task.train.first] == [
            task.labels[label] for label in task.train.labels
        ]
        assert task.train.index.tolist() == list(range(len(task.train)))
    assert [task.validation for task in mixed] == [task.validation for task in given]


def test_another_seed_moves_other_rows_and_the_same_seed_the_same_ones() -> None:
    first, again, other = (blurred(tasks(50, 50), 0.2, seed, "s") for seed in (0, 0, 1))
    assert first[0].train.first == again[0].train.first
    assert first[0].train.first != other[0].train.first


def test_a_growing_head_has_the_classes_of_the_next_task_early() -> None:
    assert [task.seen for task in blurred(tasks(9, 9, 9, growing=True), 0.3, 0, "s")] == [2, 3, 3]
    assert [task.seen for task in blurred(tasks(9, 9), 0.3, 0, "s")] == [None, None]


def test_pairs_keep_both_texts() -> None:
    for task in blurred(tasks(10, 10, pairs=True), 0.3, 0, "s"):
        assert task.train.second == task.train.first


def test_tasks_with_their_own_heads_are_refused() -> None:
    first, second = tasks(9, 9)
    with pytest.raises(ShiftError, match="scenario 's': blur moves rows between tasks that share"):
        blurred([first, replace(second, head="other")], 0.1, 0, "scenario 's'")


def test_rows_of_different_kinds_are_refused() -> None:
    mixed = [tasks(9, 9)[0], tasks(9, 9, pairs=True)[1]]
    with pytest.raises(ShiftError, match="cannot mix rows of one text with pairs"):
        blurred(mixed, 0.1, 0, "scenario 's'")
