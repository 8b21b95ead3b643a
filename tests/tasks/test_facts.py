"""The built-in tasks of facts: the same people in both splits, in wordings that differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from clbench.tasks.facts import ATTRIBUTES, FACTS, FIRST, LAST, OTHER_FACTS, PEOPLE
from clbench.tasks.registry import task_identity
from clbench.tasks.task import Rows, TaskSource

NAMES = {*FIRST.split(), *LAST.split()}
TASKS = {task.kind: task(TaskSource(None, Path())) for task in (*FACTS, OTHER_FACTS)}
DIGESTS = {
    "facts": ("3ca3c34ff3f1baeda4ec38faaf3a1088", "ed3d311dd4a41915a82bfcb4cd2bb9cb"),
    "new-facts": ("9124675a77e8d239a289f490da241e93", "d3495bfa843d46140b7b986271421585"),
}


def facts(rows: Rows) -> Counter[tuple[str, str]]:
    """Return how often each person has each value: both names of a person are in every text."""
    texts = ["".join(c if c.isalnum() else " " for c in text).split() for text in rows.first]
    people = [" ".join(word for word in words if word in NAMES) for words in texts]
    values = [choices[label] for *choices, label in zip(*rows.choices, rows.labels, strict=True)]
    return Counter(zip(people, values, strict=True))


@pytest.mark.parametrize("kind", DIGESTS)
def test_the_rows_never_change(kind: str) -> None:
    task, name = TASKS[kind], f"synthetic/{kind}"
    assert (task.train.digest, task.validation.digest) == DIGESTS[kind]
    identity = task_identity(name, data=None, base=Path(), own={})
    assert identity == {"name": name, **task.source}
    assert [choices[0] for choices in TASKS["facts"].validation.choices] == [
        "English", "French", "German", "Spanish", "Italian", "Russian", "Chinese", "Japanese",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", PEOPLE)
def test_scored_rows_ask_for_the_facts_of_training_rows_in_another_wording(kind: str) -> None:
    task = TASKS[kind]
    learned, asked = facts(task.train), facts(task.validation)
    assert len(asked) == PEOPLE[kind] * len(ATTRIBUTES) == len(task.validation)
    assert set(asked.values()) == {1}
    assert learned == Counter(dict.fromkeys(asked, 5))
    assert not {*task.train.first} & {*task.validation.first}
    assert {*Counter(value for _, value in asked).values()} == {PEOPLE[kind] // 8}


def test_the_tasks_are_about_different_people() -> None:
    people = [{person for person, _ in facts(task.validation)} for task in TASKS.values()]
    assert [len(some) for some in people] == [48, 16, 48]
    assert len(set.union(*people)) == 48 + 16 + 48
