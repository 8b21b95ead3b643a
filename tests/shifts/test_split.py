from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_context import FakeContext

from clbench.core.errors import DataError, ShiftError
from clbench.shifts.base import Split
from clbench.shifts.division import SentenceLength
from clbench.tasks.task import Task


def build(task: Task, base: Path = Path(), **settings: Any) -> Any:
    return SentenceLength(task="base", **settings).build(FakeContext({"base": task}, base=base))


@pytest.fixture
def saved(by_length: Task, tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "split.json"
    build(by_length).split.save(path)
    return path


def test_the_saved_file_has_rows_settings_and_digests(saved: Path, by_length: Task) -> None:
    stored = json.loads(saved.read_text())
    assert stored == {
        "schema_version": 1,
        "kind": "sentence-length",
        "task": "base",
        "fitted": {"unit": "tokens", "thresholds": [4], "ties": ["short"]},
        "parts": [
            {"name": "short", "train": [1, 3, 4, 6], "validation": [0, 1, 4, 5], "tuning": []},
            {"name": "long", "train": [0, 2, 5, 7], "validation": [2, 3], "tuning": []},
        ],
        "digests": {"train": by_length.train.digest, "validation": by_length.validation.digest},
        "numbers": build(by_length).numbers,
    }
    assert [path.name for path in saved.parent.iterdir()] == ["split.json"]


def test_a_loaded_split_gives_the_same_parts(saved: Path, by_length: Task) -> None:
    fitted, loaded = build(by_length), Split.load(saved)
    assert loaded == replace(fitted.split)
    again = build(by_length, saved.parent, split="split.json")
    for before, after in zip(fitted.tasks, again.tasks, strict=True):
        assert after.name == before.name
        assert after.train.digest == before.train.digest
        assert after.validation.digest == before.validation.digest
    assert again.numbers == fitted.numbers
    assert build(by_length, split=str(saved)).tasks[0].train.digest == again.tasks[0].train.digest


@pytest.mark.parametrize("setting", [{"online": True}, {"blur": 0.1}])
def test_settings_of_the_training_do_not_decide_a_split(
    setting: dict[str, Any], saved: Path, by_length: Task
) -> None:
    split = build(by_length).split
    assert build(by_length, split=str(saved), **setting).split == split
    assert build(by_length, **setting).split == split
    stored = json.loads(saved.read_text())
    stored["fitted"] |= setting  # as earlier versions saved them
    saved.write_text(json.dumps(stored))
    assert build(by_length, split=str(saved)).numbers == split.numbers


def test_parts_name_positions_in_the_source(by_length: Task) -> None:
    limited = replace(by_length, train=by_length.train.take([0, 1, 3, 5]))
    split = build(limited).split
    assert split.parts[0].train == (1, 3)
    assert split.apply(limited)[1].train.index.tolist() == [0, 5]


@pytest.mark.parametrize("change", ["label", "text", "order", "fewer", "tuning"])
def test_other_rows_are_refused(change: str, saved: Path, by_length: Task) -> None:
    rows, tuning = by_length.train, None
    if change == "label":
        rows = replace(rows, labels=1 - rows.labels)
    elif change == "text":
        rows = replace(rows, first=[*rows.first[:-1], "0 0 other"])
    elif change == "order":
        rows = rows.take(np.arange(len(rows))[::-1])
    elif change == "fewer":
        rows = rows.take(np.arange(7))
    else:
        tuning = by_length.validation
    task = replace(by_length, train=rows, tuning=tuning)
    with pytest.raises(ShiftError) as caught:
        build(task, split=str(saved))
    if change == "tuning":
        assert "has no rows for tuning, which are held out of the training rows. Leave `split`" in (
            str(caught.value)
        )
    else:
        assert "was made from other train rows of 'base'" in str(caught.value)
        assert "leave `split` out" in str(caught.value)


def test_another_task_shift_or_setting_is_refused(saved: Path, by_length: Task) -> None:
    other = SentenceLength(task="other", split=str(saved))
    with pytest.raises(ShiftError, match="divides task 'base', not 'other'"):
        other.build(FakeContext({"other": replace(by_length, name="other")}))
    with pytest.raises(
        ShiftError, match=r"fitted with unit = 'tokens', but the scenario has 'words'"
    ):
        build(by_length, split=str(saved), unit="words")
    build(by_length, k=3).split.save(saved.with_name("three.json"))
    with pytest.raises(ShiftError, match="was fitted with k = 3, but the scenario has 2"):
        build(by_length, split=str(saved.with_name("three.json")))
    saved.write_text(saved.read_text().replace("sentence-length", "embedding-cluster"))
    with pytest.raises(ShiftError, match="with shift = 'embedding-cluster', but the scenario has"):
        build(by_length, split=str(saved))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged, or not a split of this version of clbench (is not complete JSON"),
        ("[]", "is damaged, or not a split of this version of clbench ("),
        (
            '{"schema_version": 1}',
            "version of clbench (kind: is missing). Name a file scenarios/*",
        ),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_not_a_split_is_refused(
    content: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "split.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError) as caught:
        Split.load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_or_newer_file_is_refused(saved: Path) -> None:
    content = saved.read_text()
    saved.write_text(content.replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(DataError, match="schema_version: must be 1"):
        Split.load(saved)
    saved.write_text(content[: len(content) // 2])
    with pytest.raises(DataError, match="is not complete JSON"):
        Split.load(saved)
    with pytest.raises(DataError, match="cannot be read"):
        Split.load(saved.parent)
