"""Posts to newsgroups from the folders of the unpacked archive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clbench.core.errors import DataError
from clbench.tasks.hub_task import FOLDERS
from clbench.tasks.registry import load_task
from clbench.tasks.task import Task

POST = "From: me\nSubject: orbits\n\nJohn writes:\n> an old line\nA new {} line.\n\n--\nsigned\n"
QUOTE = "From: someone\n\n> an old line\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for folder in FOLDERS.values():
        for group in ("sci.space", "rec.autos"):
            place = tmp_path / "20newsgroups" / folder / group
            place.mkdir(parents=True)
            (place / "1").write_bytes(POST.format("\xe9").encode("latin1"))
            (place / "2").write_text(QUOTE)
    return tmp_path


def load(data: Path) -> Task:
    return load_task("20newsgroups", data=data, base=data, own={})


def test_groups_are_classes_and_posts_lose_all_but_their_body(data: Path) -> None:
    task = load(data)
    assert task.labels == ("rec.autos", "sci.space")
    for rows in (task.train, task.validation):
        assert [text.strip() for text in rows.first] == ["A new é line."] * 2
        assert np.asarray(rows.labels).tolist() == [0, 1]
    assert task.source["blank"] == {"train": 2, "validation": 2}


def test_the_identity_follows_the_posts(data: Path) -> None:
    before = load(data)
    (data / "20newsgroups" / FOLDERS["train"] / "sci.space" / "1").write_text(POST.format("other"))
    after = load(data)
    assert before.source["files"] != after.source["files"]
    assert before.train.digest != after.train.digest


def test_folders_that_differ_or_lack_are_reported(data: Path) -> None:
    place = data / "20newsgroups" / FOLDERS["validation"]
    for post in (place / "sci.space").iterdir():
        post.unlink()
    (place / "sci.space").rmdir()
    with pytest.raises(DataError, match="hold other groups"):
        load(data)
    for post in (place / "rec.autos").iterdir():
        post.unlink()
    (place / "rec.autos").rmdir()
    place.rmdir()
    with pytest.raises(DataError, match="give data='DIR' with the folders of the unpacked archive"):
        load(data)
