"""Malformed suites, baseline files and data files."""
# ruff: noqa: E501

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from faults.cases import LONG, ODD_FILES, RUN, SUITE, Case, as_odd_file, spoil, spoil_bytes, toml

DRY: dict[str, Any] = {"dry": True}

SUITE_TEXTS = {
    "an integer of 5,000 digits": lambda text: text.replace('"epochs" = 1', f'"epochs" = {"9" * 5_000}'),
    "a seed of 5,000 digits": lambda text: text.replace("[0]", f"[{'9' * 5_000}]"),
    "a key twice": lambda text: text + text.splitlines()[0] + "\n",
    "10,000 unknown keys": lambda text: "".join(f"k{n} = 1\n" for n in range(10_000)) + text,
    "nested 2,000 deep": lambda text: f"x = {'[' * 2_000}{']' * 2_000}\n{text}",
    "a NUL in a path": lambda text: text.replace("mood.csv", "mo\\u0000od.csv"),
    "a path of 5,000 characters": lambda text: text.replace("mood.csv", f"{LONG}.csv"),
    "a model of 5,000 characters": lambda text: text.replace('"model" = "model"', f'"model" = "{LONG}"'),
    "a NUL in the model": lambda text: text.replace('"model" = "model"', '"model" = "mo\\u0000del"'),
    "a lone surrogate": lambda text: text.replace("A suite", "\\ud800"),
    "1,000 seeds": lambda text: text.replace("[0]", str(list(range(1_000)))),
    "200 scenarios of one name": lambda text: _again(text, 200),
    "embedding-cluster with k above the rows": lambda text: text.replace(
        '"shift" = "dataset", "tasks" = ["mood", "thing"]',
        '"shift" = "embedding-cluster", "task" = "mood", "k" = 100',
    ),
    "a scenario of one task": lambda text: text.replace('"tasks" = ["mood", "thing"]', '"tasks" = ["mood"]'),
    "an infinite rate": lambda text: text.replace('"lr" = 0.002', '"lr" = inf'),
    "a hexadecimal limit of 5,000 digits": lambda text: text.replace('"limit" = 32', f'"limit" = 0x{"f" * 5_000}'),
    "a binary limit of 5,000 digits": lambda text: text.replace('"limit" = 32', f'"limit" = 0b{"1" * 5_000}'),
    "a key of 3,000 parts": lambda text: f"{'a.' * 3_000}a = 1\n{text}",
    "10**12 points of curves": lambda text: text.replace('"curve_points" = 2', '"curve_points" = 1000000000000'),
    "10,000 unknown methods": lambda text: text.replace('"methods" = [', f'"methods" = [{", ".join(f"{chr(34)}zz{n}{chr(34)}" for n in range(10_000))}, '),
    "dates": lambda text: text.replace('"epochs" = 1', '"epochs" = 1979-05-27T07:32:00Z'),
    "a corpus that is a folder": lambda text: text.replace('"epochs" = 1', '"epochs" = 1, "corpus" = "model"'),
    "the file itself as data": lambda text: text.replace('"mood.csv"', '"small.toml"'),
}  # fmt: skip
"""By what is wrong: changes of the text of a suite; all are to be refused, or fail a cell."""
ACCEPTED = {"1,000 seeds"}


def suite(number: int, rng: Random, folder: Path) -> Case:
    """Spoil the suite: its text, its bytes, or a value."""
    path = folder / "small.toml"
    if number < len(SUITE_TEXTS):
        what, change = list(SUITE_TEXTS.items())[number]
        text = path.read_text()
        path.write_text(change(text))
        assert path.read_text() != text, what
        return Case(what, RUN, dry=True, refused=what not in ACCEPTED)
    if number < len(SUITE_TEXTS) + len(ODD_FILES):
        kind = ODD_FILES[number - len(SUITE_TEXTS)]
        as_odd_file(path, kind)
        return Case(f"small.toml is a {kind}", RUN, dry=True, refused=True)
    if rng.random() < 0.2:
        data, what = spoil_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
        return Case(f"small.toml: {what}", RUN, dry=True)
    table = {**SUITE, "methods": ["vanilla", "strong"]}
    if rng.random() < 0.3:
        shift = rng.choice([
            {"shift": "sentence-length", "task": "mood", "unit": "words"},
            {"shift": "embedding-cluster", "task": "mood", "k": 4, "model": "model"},
        ])  # fmt: skip
        table["scenario"] = [{"name": "one", **shift}]
    table, what = spoil(table, rng)
    path.write_text(toml(table))
    return Case(what, RUN, dry=True)


BASELINE: dict[str, Any] = {
    "method": "recadam",
    "description": "A baseline to spoil.",
    "settings": {"k": 0.05, "t0": 10, "gamma": 500.0, "scaling": "stage", "for_steps": 100, "for_lr": 2e-5},
    "sources": {"k": "Somewhere."},
}  # fmt: skip
METHODS: list[dict[str, Any]] = [
    {"method": "ulmfit", "settings": {"decay": 2.6, "cut_frac": 0.1, "ratio": 32.0}},
    {"method": "layerwise", "settings": {"multiples": [0.1, 0.2, 0.5, 0.8, 1.0], "depth": 3}},
    {"method": "replay", "settings": {"memory": 8, "choice": "task", "weight": 1.0}},
    {"method": "packnet", "settings": {"prune": 0.5, "retrain": 0.5}},
    {"method": "lwf", "settings": {"temperature": 2.0, "weight": 1.0}},
    {"method": "smart", "settings": {"lambda_s": 1.0, "step_size": 1e-3, "ascents": 1}},
    {"method": "mixout", "settings": {"p": 0.5, "anchor": "pretrained"}},
    {"method": "ewc", "settings": {"importance": 10.0, "mode": "sampled", "examples": 8}},
    {"method": "lora", "settings": {"r": 2, "alpha": 4, "lr": 5e-4, "targets": "query-value"}},
]


def baseline(number: int, rng: Random, folder: Path) -> Case:
    """Spoil a baseline file."""
    path, words = folder / "mine.toml", [*RUN, "--methods", "mine.toml"]
    if number < len(ODD_FILES):
        as_odd_file(path, ODD_FILES[number])
        return Case(f"mine.toml is a {ODD_FILES[number]}", words, dry=True, refused=True)
    table, what = spoil(BASELINE if rng.random() < 0.6 else rng.choice(METHODS), rng)
    path.write_text(toml(table))
    if rng.random() < 0.15:
        data, what = spoil_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
    return Case(f"mine.toml of {table.get('method', '')!a:.40}: {what}", words, dry=True)


def _again(text: str, times: int) -> str:
    line = next(line for line in text.splitlines() if line.startswith('"scenario"'))
    table = line.removeprefix('"scenario" = [').removesuffix("]")
    return text.replace(line, f'"scenario" = [{", ".join([table] * times)}]')


ROWS = [("the film was good", "up"), ("a dull plot", "down"), ("very bright", "up")] * 12
"""Rows of a data file to spoil, with as many of each kind as training needs."""


def _csv(rows: list[tuple[str, str]], separator: str = ",") -> str:
    lines = [f"{text}{separator}{label}" for text, label in rows]
    return "\n".join([f"text{separator}label", *lines, ""])


def _json(rows: list[tuple[Any, Any]]) -> str:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


FILES: dict[str, tuple[str, Callable[[], str | bytes]]] = {
    "two columns of one name": ("csv", lambda: _csv(ROWS).replace("text,label", "label,label")),
    "a third column twice": ("csv", lambda: "text,label,a,a\n" + "x y,up,1,2\nz,down,1,2\n" * 20),
    "no header": ("csv", lambda: _csv(ROWS).partition("\n")[2]),
    "only a header": ("csv", lambda: "text,label\n"),
    "one row": ("csv", lambda: _csv(ROWS[:1])),
    "one class": ("csv", lambda: _csv(ROWS[:1] * 30)),
    "blank texts": ("csv", lambda: _csv([("", "up"), (" ", "down"), *ROWS])),
    "blank labels": ("csv", lambda: _csv([("x", ""), *ROWS])),
    "an unknown label": ("csv", lambda: _csv([("x", "sideways"), *ROWS])),
    "10,000 labels": ("csv", lambda: _csv([(f"x {n}", f"y{n}") for n in range(10_000)])),
    "an open quote": ("csv", lambda: _csv(ROWS[:20]) + '"open,up\n' + _csv(ROWS[20:])),
    "a field of a megabyte": ("csv", lambda: _csv([("x " * 500_000, "up"), *ROWS])),
    "a NUL in a field": ("csv", lambda: _csv([("a\0b", "up"), *ROWS])),
    "a control character in a label": ("csv", lambda: _csv([("a", "\x1b[31mup"), *ROWS])),
    "a control character in a header": ("csv", lambda: _csv(ROWS).replace("label", "\x1b[31mlabel")),
    "ragged rows": ("csv", lambda: _csv(ROWS) + "a,b,c,d\n" + "lonely\n"),
    "Latin-1": ("csv", lambda: _csv([("café", "up"), *ROWS]).encode("latin-1")),
    "UTF-16": ("csv", lambda: _csv(ROWS).encode("utf-16")),
    "semicolons": ("csv", lambda: _csv(ROWS, ";")),
    "tabs in a CSV": ("csv", lambda: _csv(ROWS, "\t")),
    "commas in a TSV": ("tsv", lambda: _csv(ROWS)),
    "an HTML page": ("csv", lambda: "<!doctype html>\n<html><body>404</body></html>\n" * 5),
    "a zip file": ("csv", lambda: b"PK\x03\x04" + bytes(range(256)) * 4),
    "a Parquet file named CSV": ("csv", lambda: b"PAR1" + bytes(100) + b"PAR1"),
    "a CSV named Parquet": ("parquet", lambda: _csv(ROWS)),
    "a CSV named JSONL": ("jsonl", lambda: _csv(ROWS)),
    "one JSON array": ("jsonl", lambda: json.dumps([{"text": a, "label": b} for a, b in ROWS])),
    "a list as a text": ("jsonl", lambda: _json([(["a"], "up"), *ROWS])),
    "an object as a label": ("jsonl", lambda: _json([("a", {"x": 1}), *ROWS])),
    "null as a text": ("jsonl", lambda: _json([(None, "up"), *ROWS])),
    "null as a label": ("jsonl", lambda: _json([("a", None), *ROWS])),
    "a number as a text": ("jsonl", lambda: _json([(1.5, "up"), *ROWS])),
    "NaN as a label": ("jsonl", lambda: _json([("a", float("nan")), *ROWS])),
    "an integer of 5,000 digits": ("jsonl", lambda: f'{{"text": "a", "label": {"9" * 5_000}}}\n'),
    "brackets 100,000 deep": ("jsonl", lambda: "[" * 100_000),
    "a lone surrogate": ("jsonl", lambda: '{"text": "\\ud800", "label": "up"}\n' + _json(ROWS)),
    "a key twice": ("jsonl", lambda: '{"text": "a", "text": "b", "label": "up"}\n' + _json(ROWS)),
    "a missing key": ("jsonl", lambda: '{"text": "a"}\n' + _json(ROWS)),
    "lines without end": ("jsonl", lambda: _json(ROWS).replace("\n", " ")),
}  # fmt: skip
FINE = {
    "a field of a megabyte",
    "lines without end",
    "a third column twice",
    "a key twice",
    "a number as a text",
    "a NUL in a field",
}
"""Odd, but such files may be read."""
LABELS = ["1e308", "-1e308", "nan", "inf", "1e999", "text", "", "1,5", "0x10", "९", "1_000", "-0.0"]
"""Odd numbers to predict."""


def data(number: int, rng: Random, folder: Path) -> Case:
    """Spoil a data file: a whole one, its kind, a number to predict, or its bytes."""
    split = rng.choice(["train", "validation"])
    path = folder / SUITE["task"]["mood"][split]

    def use(path: Path, **keys: Any) -> None:
        tasks = {**SUITE["task"], "mood": {**SUITE["task"]["mood"], split: path.name, **keys}}
        (folder / "small.toml").write_text(toml({**SUITE, "task": tasks}))

    if number < len(FILES):
        what, (suffix, content) = list(FILES.items())[number]
        path, text = folder / f"odd.{suffix}", content()
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        use(path)
        # One row or one class is enough to score on.
        fine = what in FINE or (split == "validation" and what in ("one row", "one class"))
        return Case(f"{split}: {what}", RUN, dry=True, refused=not fine)
    number -= len(FILES)
    if number < len(ODD_FILES):
        as_odd_file(path, ODD_FILES[number])
        return Case(f"{path.name} is a {ODD_FILES[number]}", RUN, dry=True, refused=True)
    number -= len(ODD_FILES)
    if number < len(LABELS):
        lines = [f"word {n},{n % 7}" for n in range(40)]
        for name in ("numbers.csv", "numbers-dev.csv"):
            (folder / name).write_text("\n".join(["text,label", *lines, ""]))
        odd = folder / rng.choice(["numbers.csv", "numbers-dev.csv"])
        odd.write_text(odd.read_text() + f"odd,{LABELS[number]}\n")
        table = {"train": "numbers.csv", "validation": "numbers-dev.csv", "text": "text",
                 "label": "label", "regression": True}  # fmt: skip
        tasks = {**SUITE["task"], "mood": table}
        (folder / "small.toml").write_text(toml({**SUITE, "task": tasks}))
        fine = LABELS[number] in ("-0.0", "९", "1_000")  # as Python reads numbers
        what = f"a number to predict in {odd.name}: {LABELS[number]!a}"
        return Case(what, RUN, dry=True, refused=not fine)
    suffix = rng.choice(["csv", "tsv", "jsonl", "parquet"])
    path = folder / f"odd.{suffix}"
    _write(path)
    content, what = spoil_bytes(path.read_bytes(), rng)
    path.write_bytes(content)
    use(path)
    return Case(f"{split} in {suffix}: {what}", RUN, dry=True)


def _write(path: Path) -> None:
    """Write valid rows in the format of the suffix."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        texts, labels = zip(*ROWS, strict=True)
        pq.write_table(pa.table({"text": texts, "label": labels}), path)
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        path.write_text(_json(ROWS) if path.suffix == ".jsonl" else _csv(ROWS, separator))
