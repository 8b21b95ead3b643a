"""Sequences whose tasks share a head, or do not; rows that blur into neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.fake_context import FakeContext, make_task

from clbench.core.errors import ShiftError
from clbench.shifts.dataset import SequenceShift, blurred, share_head
from clbench.shifts.scenario import build_scenario
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template


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


def test_a_class_that_gets_its_task_in_front_has_a_name_of_its_own() -> None:
    tasks = [task("news", ("Sports", "World")), task("yahoo", ("Sports", "news: Sports"))]
    with pytest.raises(ShiftError, match=r"would be named 'news: Sports'\. Rename one"):
        share_head(tasks, growing=False)


def test_a_class_has_the_same_answer_for_the_rows_of_every_task() -> None:
    def answering(of: Task, *answers: str) -> Task:
        template = Template(f"{of.name}: {{text}}", dict(zip(of.labels, answers, strict=True)))
        return replace(of, template=template)

    yelp, news, amazon, yahoo = TASKS
    given = [
        answering(yelp, "bad", "so_so"), answering(news, "sport", "world"),
        answering(amazon, "poor", "fair"), answering(yahoo, "sport", "body"),
        task("last", ("not_so", "well")),
    ]  # fmt: skip
    tasks = share_head(given, growing=False)
    answers = {name: [t.template.answer(name) for t in tasks] for name in tasks[0].labels}  # type: ignore[union-attr]
    # "sport" would be the answer of two classes.
    expected = ("bad", "so_so", "news: Sports", "world", "yahoo: Sports", "body", "not so", "well")
    assert [*answers.values()] == [[answer] * 5 for answer in expected]
    prompts = [t.template.render(["x"]) for t in tasks]  # type: ignore[union-attr]
    assert prompts == ["yelp: x", "news: x", "amazon: x", "yahoo: x", "x\nAnswer:"]


def test_only_a_shared_head_grows() -> None:
    with pytest.raises(ShiftError, match="only a shared head can grow"):
        build(growing=True)


def test_tasks_without_classes_cannot_share_a_head() -> None:
    numbers = replace(TASKS[1], labels=())
    with pytest.raises(ShiftError, match="it cannot share a head"):
        share_head([TASKS[0], numbers], growing=True)


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


def test_a_scenario_with_blur_has_mixed_rows_that_its_seed_draws() -> None:
    given = {n: make_task([f"{n} {i}" for i in range(20)], [n, n], name=n) for n in "ab"}
    settings = {"tasks": [*given], "head": "shared", "blur": 0.25}
    one, other = (
        build_scenario("s", "sequence", settings, FakeContext(given, seed), severity=False).tasks
        for seed in (0, 1)
    )
    firsts = [task.train.first for task in one]
    assert [sum(text[0] == "a" for text in texts) for texts in firsts] == [15, 5]
    assert firsts != [task.train.first for task in other]


def test_a_growing_head_has_the_classes_of_the_next_task_early() -> None:
    assert [task.seen for task in blurred(tasks(9, 9, 9, growing=True), 0.3, 0, "s")] == [2, 3, 3]
    assert [task.seen for task in blurred(tasks(9, 9), 0.3, 0, "s")] == [None, None]


def test_pairs_keep_both_texts() -> None:
    for task in blurred(tasks(10, 10, pairs=True), 0.3, 0, "s"):
        assert task.train.second == task.train.first


def test_mixed_rows_keep_their_groups_where_all_have_them() -> None:
    rows = replace(Rows.of([*"abcd"], None, [0] * 4), groups=np.array([7, 7, 3, 3]))
    joined = Rows.joined([rows, rows.take([0]), rows.take([])])
    assert joined.groups is not None
    assert joined.group_sizes is not None
    assert joined.groups.tolist() == [1, 1, 0, 0, 2]
    assert joined.group_sizes.tolist() == [2] * 5
    assert joined.torn_groups == 1
    given = [
        replace(task, train=rows, validation=rows, metrics=("exact-match",)) for task in tasks(4, 4)
    ]
    given[1] = replace(given[1], train=replace(rows, groups=None, group_sizes=None))
    for task in blurred(given, 0.25, 0, "s"):
        assert task.train.groups is None
        assert task.group_metrics == ["exact-match"]


def test_mixed_rows_keep_numbers_and_texts_to_write_and_get_one_prompt() -> None:
    labels = np.array([0.5, 4.9], dtype=np.float32)
    number = replace(Rows.of(["a", "b"], None, [0, 0]), labels=labels, targets=["x", "y"])
    joined = Rows.joined([number, number])
    assert joined.labels.tolist() == [*labels, *labels]
    assert joined.targets == ["x", "y", "x", "y"]
    first, second = tasks(10, 10)
    asked = replace(second, template=Template("{text}?", {"class 1": "one"}))
    for task, answer in zip(blurred([first, asked], 0.3, 0, "s"), ("class 1", "one"), strict=True):
        assert task.template is not None
        assert task.template.prompt == Template.default(False).prompt
        assert task.template.answer("class 1") == answer


def test_tasks_with_their_own_heads_are_refused() -> None:
    first, second = tasks(9, 9)
    with pytest.raises(ShiftError, match="scenario 's': blur moves rows between tasks that share"):
        blurred([first, replace(second, head="other")], 0.1, 0, "scenario 's'")


def test_rows_of_different_kinds_are_refused() -> None:
    mixed = [tasks(9, 9)[0], tasks(9, 9, pairs=True)[1]]
    with pytest.raises(ShiftError, match="cannot mix rows of one text with pairs"):
        blurred(mixed, 0.1, 0, "scenario 's'")
