"""Suites, baseline files and data files: any value, text or byte of them may be wrong."""
# ruff: noqa: E501

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import strategies as st

from faults.spoil import (
    ODD_FILES,
    RUN,
    SUITE,
    any_input,
    as_odd_file,
    damage,
    one_of,
    spoil_file,
    texts,
    values,
    write_suite,
)
from faults.verdict import Judge

PACKAGED = sorted((Path(__file__).parents[2] / "baselines").glob("*.toml"))
SHIFTS: tuple[dict[str, Any], ...] = (
    {"shift": "dataset", "tasks": ["mood", "thing"]},
    {"shift": "sentence-length", "task": "mood", "unit": "words"},
    {"shift": "embedding-cluster", "task": "mood", "k": 4, "model": "model"},
)


@any_input
def test_any_suite(judge: Judge, data: st.DataObject) -> None:
    folder = judge.fresh()
    write_suite(folder, scenario=[{"name": "one", **one_of(data.draw, *SHIFTS)}])
    judge.answer(spoil_file(data.draw, folder / "small.toml"), RUN, dry=True)


@any_input
def test_any_baseline(judge: Judge, data: st.DataObject) -> None:
    path = judge.fresh() / "mine.toml"
    path.write_bytes(one_of(data.draw, *PACKAGED).read_bytes())
    what = spoil_file(data.draw, path)
    judge.answer(what, [*RUN, "--methods", path.name], dry=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize(
    "name", ["small.toml", "mine.toml", "mood.csv", "model/config.json", "model/model.safetensors"]
)
def test_an_odd_file(judge: Judge, name: str, kind: str) -> None:
    as_odd_file(judge.fresh() / name, kind)
    words = [*RUN, "--methods", name] if name == "mine.toml" else RUN
    judge.answer(f"{name} is a {kind}", words, dry=True, refused=True)


ROWS = [("the film was good", "up"), ("a dull plot", "down"), ("very bright", "up")] * 12
"""Rows of a data file to spoil, with as many of each kind as training needs."""


def _csv(rows: list[tuple[Any, Any]], separator: str = ",") -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator="\n").writerows([("text", "label"), *rows])
    return file.getvalue()


def _json(rows: list[tuple[Any, Any]]) -> str:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def _parquet(rows: list[tuple[Any, Any]]) -> bytes:
    frame = pd.DataFrame([map(str, row) for row in rows], columns=["text", "label"])
    content: bytes = frame.to_parquet()
    return content


FORMATS: dict[str, Callable[[list[tuple[Any, Any]]], str | bytes]] = {
    "csv": _csv, "tsv": partial(_csv, separator="\t"), "jsonl": _json, "parquet": _parquet,
}  # fmt: skip
FILES: dict[str, tuple[str, str | bytes]] = {
    "two columns of one name": ("csv", _csv(ROWS).replace("text,label", "label,label")),
    "no header": ("csv", _csv(ROWS).partition("\n")[2]),
    "10,000 labels": ("csv", _csv([(f"x {n}", f"y{n}") for n in range(10_000)])),
    "a field of a megabyte": ("csv", _csv([("x " * 500_000, "up"), *ROWS])),
    "an HTML page": ("csv", "<!doctype html>\n<html><body>404</body></html>\n" * 5),
    "one JSON array": ("jsonl", json.dumps([{"text": text, "label": label} for text, label in ROWS])),
    "an integer of 5,000 digits": ("jsonl", f'{{"text": "a", "label": {"9" * 5_000}}}\n'),
    "a lone surrogate": ("jsonl", '{"text": "\\ud800", "label": "up"}\n' + _json(ROWS)),
    "a key twice": ("jsonl", '{"text": "a", "text": "b", "label": "up"}\n' + _json(ROWS)),
    "lines without end": ("jsonl", _json(ROWS).replace("\n", " ")),
}  # fmt: skip
READABLE = ("a field of a megabyte", "lines without end", "a key twice", "one JSON array")


def _use(folder: Path, split: str, suffix: str, content: str | bytes, **keys: Any) -> None:
    """Write a data file in the place of one of the task mood."""
    path = folder / f"odd.{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    mood = {**SUITE["task"]["mood"], split: path.name, **keys}
    mood = {key: value for key, value in mood.items() if value is not None}
    write_suite(folder, task={**SUITE["task"], "mood": mood})


@pytest.mark.slow
@pytest.mark.parametrize("what", FILES)
def test_an_odd_data_file(judge: Judge, what: str) -> None:
    _use(judge.fresh(), "train", *FILES[what])
    judge.answer(what, RUN, dry=True, refused=what not in READABLE)


NUMBERS = ("1e308", "-1e308", "nan", "inf", "1e999", "text", "", "0x10", "९", "1_000", "-0.0")
"""Odd numbers to predict."""


@any_input
def test_any_data_file(judge: Judge, data: st.DataObject) -> None:
    folder, draw = judge.fresh(), data.draw
    split, suffix = one_of(draw, "train", "validation"), one_of(draw, *FORMATS)
    kind, form = one_of(draw, "rows", "bytes", "numbers"), one_of(draw, suffix, suffix, *FORMATS)
    if kind == "numbers":
        rows = [(f"word {n}", f"{n % 7}") for n in range(40)]
        (folder / "numbers.csv").write_text(_csv(rows))
        odd = [("odd", draw(st.sampled_from(NUMBERS) | texts))]
        keys = {"regression": True, "labels": None, "metrics": None, "validation": "numbers.csv"}
        _use(folder, split, suffix, FORMATS[form]([*rows, *odd]), **keys)
    elif kind == "rows":
        odd = draw(st.lists(st.tuples(values, st.just("up") | values), min_size=1, max_size=3))
        _use(folder, split, suffix, FORMATS[form]([*ROWS, *odd]))
    else:
        content = FORMATS[form](ROWS)
        content, odd = damage(draw, content.encode() if isinstance(content, str) else content)
        _use(folder, split, suffix, content)
    judge.answer(f"{split}, {form} in {suffix}: {ascii(odd)[:80]}", RUN, dry=True)
