"""Rows in JSON: texts that look like dates, and files that begin with a byte-order mark."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest

from clbench.core.errors import DataError
from clbench.tasks.registry import load_column, load_task
from clbench.tasks.spec import FileTaskSpec
from clbench.tasks.task import Task

DAYS = ("2019-01-01", "2020-01-01")
ROWS = [{"text": f"text {i}", "label": "ab"[i % 2], "day": DAYS[i % 2]} for i in range(8)]
LINES = "\n".join(map(json.dumps, ROWS)).encode()


def spec(name: str, **keys: Any) -> FileTaskSpec:
    return FileTaskSpec(
        train=name, validation_fraction=0.5, **{"text": "text", "label": "label", **keys}
    )


def load(folder: Path, content: bytes, name: str = "t.jsonl", **keys: Any) -> Task:
    (folder / name).write_bytes(content)
    return load_task("t", data=None, base=folder, own={"t": spec(name, **keys)})


@pytest.mark.parametrize("name", ["t.jsonl", "t.json"])
def test_dates_are_texts(tmp_path: Path, name: str) -> None:
    content = LINES if name == "t.jsonl" else json.dumps(ROWS).encode()
    assert load(tmp_path, content, name, label="day").labels == DAYS
    assert set(load(tmp_path, content, name, text="day").train.first) == {*DAYS}
    assert set(load(tmp_path, content, name, target="day", label="day").train.targets or ()) == {
        *DAYS
    }
    days = load_column("t", "day", data=None, base=tmp_path, own={"t": spec(name)})
    assert set(days["train"].values()) == {*DAYS}


@pytest.mark.parametrize("content", [LINES, json.dumps(ROWS).encode()])
def test_a_byte_order_mark_is_skipped(tmp_path: Path, content: bytes) -> None:
    plain, marked = (load(tmp_path, mark + content, "t.json") for mark in (b"", codecs.BOM_UTF8))
    assert marked.labels == plain.labels == ("a", "b")
    assert marked.train.digest == plain.train.digest


def test_a_broken_array_is_called_json(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a valid json file in UTF-8"):
        load(tmp_path, codecs.BOM_UTF8 + b'[{"text": "a"', "t.json")
