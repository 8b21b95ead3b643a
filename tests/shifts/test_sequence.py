"""Sequences whose tasks share a head, or do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_context import FakeContext

from clbench.core.errors import ShiftError
from clbench.shifts.dataset import SequenceShift, share_head
from clbench.tasks.task import Rows, Task


def task(name: str, labels: tuple[str, ...]) -> Task:
    rows = Rows.of([f"{name} {label}" for label in labels], None, range(len(labels)))
    return Task(name, labels, ("accuracy",), rows, rows, head=name)


STARS = ("1 star", "2 stars")
TASKS = [
    task("yelp", STARS), task("news", ("Sports", "World")), task("amazon", STARS),
    task("yahoo", ("Sports", "Health")),
]  # fmt: skip


def build(**settings: Any) -> tuple[Task, ...]:
    context = FakeContext({task.name: task for task in TASKS})
    return SequenceShift(tasks=[task.name for task in TASKS], **settings).build(context).tasks


def test_each_task_has_a_head_of_its_own() -> None:
    tasks = build()
    assert [task.head for task in tasks] == ["yelp", "news", "amazon", "yahoo"]
    assert all(task.own == () for task in tasks)
    assert all(task.seen is None for task in tasks)


@pytest.mark.parametrize(("growing", "seen"), [(False, [None] * 4), (True, [2, 4, 4, 6])])
def test_equal_lists_of_classes_are_one(growing: bool, seen: list[int | None]) -> None:
    tasks = build(head="shared", growing=growing)
    assert {task.head for task in tasks} == {"shared"}
    assert [task.seen for task in tasks] == seen
    assert [task.own for task in tasks] == [(0, 1), (2, 3), (0, 1), (4, 5)]
    expected = (*STARS, "news: Sports", "World", "yahoo: Sports", "Health")
    assert {task.labels for task in tasks} == {expected}
    for changed, original in zip(tasks, TASKS, strict=True):
        names = [changed.labels[number].rpartition(": ")[2] for number in changed.train.labels]
        assert names == [original.labels[number] for number in original.train.labels]


def test_only_a_shared_head_grows() -> None:
    with pytest.raises(ShiftError, match="only a shared head can grow"):
        build(growing=True)


def test_tasks_without_classes_cannot_share_a_head() -> None:
    numbers = replace(TASKS[1], labels=())
    with pytest.raises(ShiftError, match="it cannot share a head"):
        share_head([TASKS[0], numbers], growing=True)
