"""The built-in task of facts: the same people in both splits, in wordings that differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from clbench.tasks.facts import ATTRIBUTES, FIRST, LAST, PEOPLE
from clbench.tasks.registry import load_task, task_identity
from clbench.tasks.task import Rows


def facts(rows: Rows) -> Counter[tuple[str, str]]:
    """Return how often each person has each value: both names of a person are in every text."""
    texts = ["".join(c if c.isalnum() else " " for c in text).split() for text in rows.first]
    people = [" ".join(sorted(w for w in words if w in NAMES)) for words in texts]
    values = [choices[label] for *choices, label in zip(*rows.choices, rows.labels, strict=True)]
    return Counter(zip(people, values, strict=True))


TASK = load_task("synthetic/facts", data=None, base=Path(), own={})
NAMES = {*FIRST.split(), *LAST.split()}


def test_the_rows_never_change() -> None:
    digests = TASK.train.digest, TASK.validation.digest
    assert digests == ("3ca3c34ff3f1baeda4ec38faaf3a1088", "ed3d311dd4a41915a82bfcb4cd2bb9cb")
    identity = task_identity("synthetic/facts", data=None, base=Path(), own={})
    assert identity["rows"] == dict(zip(("train", "validation"), digests, strict=True))
    assert [choices[0] for choices in TASK.validation.choices] == [
        "English", "French", "German", "Spanish", "Italian", "Russian", "Chinese", "Japanese",
    ]  # fmt: skip


def test_scored_rows_ask_for_the_facts_of_training_rows_in_another_wording() -> None:
    learned, asked = facts(TASK.train), facts(TASK.validation)
    assert len(asked) == PEOPLE * len(ATTRIBUTES) == len(TASK.validation) == 144
    assert set(asked.values()) == {1}
    assert learned == Counter(dict.fromkeys(asked, 5))
    assert not {*TASK.train.first} & {*TASK.validation.first}


def test_every_value_is_right_as_often() -> None:
    assert {*Counter(value for _, value in facts(TASK.validation)).values()} == {6}
