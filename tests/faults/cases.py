"""A malformed input: a valid folder with one thing wrong, and the command that meets it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from helpers.checkpoints import make_checkpoint
from helpers.workspace import rows, write_rows

LONG = "x" * 5_000
ODD: tuple[Any, ...] = (
    [], {}, "", None, True, False, -1, 0, 0.5, 1e308, -1e308, float("nan"), float("inf"), 10**30,
    2**63, 2**32, LONG, "\x1b[31mred\x07\x00", "line\nbreak", "a\u202eb\u2066c", "1", "nan", "名前",
    "<script>alert(1)</script>", "../../up", "/dev/null", "a--b", [[]], [None], [1, 2], ["x", "x"],
    {"a": 1}, {"a": {"b": []}},
)  # fmt: skip
"""Values to put in the place of any other."""

SUITE: dict[str, Any] = {
    "name": "small",
    "description": "A suite to spoil.",
    "methods": ["vanilla", "ewc"],
    "seeds": [0],
    "protocol": {
        "model": "model",
        "epochs": 1,
        "lr": 0.002,
        "batch_size": 8,
        "max_length": 24,
        "curve_points": 2,
        "curve_rows": 8,
        "limit": 32,
        "precision": "float32",
    },
    "task": {
        name: {
            "train": f"{name}.csv",
            "validation": f"{name}-dev.csv",
            "text": "text",
            "label": "label",
            "labels": labels,
            "metrics": ["accuracy"],
        }
        for name, labels in {"mood": ["down", "up"], "thing": ["film", "story"]}.items()
    },
    "baseline": {"strong": {"of": "ewc", "settings": {"importance": 9.0, "examples": 8}}},
    "scenario": [{"name": "pair", "shift": "dataset", "tasks": ["mood", "thing"]}],
}


@dataclass
class Case:
    """One malformed input.

    Attributes
    ----------
    what
        The smallest input: what differs from a valid folder, in a line.
    words
        The command.
    dry
        Whether the command is to be run with ``--dry-run`` first.
    refused
        Whether the command must not succeed; else it may, as the input may be fine.
    writes
        Folders in which the command may write if it accepts the input.
    seen
        A text that must be on stderr, such as the name of the file that is left out.
    checks
        Yields what is wrong in the folder afterwards, compared with one of a finished run.
    """

    what: str
    words: list[str]
    dry: bool = False
    refused: bool = False
    writes: tuple[str, ...] = ("out",)
    seen: str = ""
    checks: Callable[[Path, Path], Iterator[str]] = lambda folder, undisturbed: iter(())


@dataclass(frozen=True)
class Trial:
    """What came of `count` faults: `problem` is empty if they were well answered."""

    count: int
    what: str
    problem: str = ""
    output: str = ""


RUN = ["run", "small.toml", "--out", "out", "--threads", "1"]
REPORT = ["report", "out", "--formats", "png"]


def make_folder(folder: Path) -> None:
    """Write a checkpoint, rows and a suite, all valid."""
    make_checkpoint("bert", folder / "model")
    for number, (name, word) in enumerate({"mood": "good", "thing": "film"}.items()):
        labels = SUITE["task"][name]["labels"]

        def label(words: list[str], word: str = word, labels: list[str] = labels) -> str:
            return str(labels[1 if (word in words) == (word == "good") else 0])

        write_rows(folder / f"{name}.csv", rows(number, 60, label))
        write_rows(folder / f"{name}-dev.csv", rows(100 + number, 40, label))
    write_suite(folder)


def write_suite(folder: Path, **changes: Any) -> None:
    """Write small.toml, with other values at the top."""
    (folder / "small.toml").write_text(toml({**SUITE, **changes}), encoding="utf-8")


def fresh(template: Path, folder: Path) -> Path:
    """Return a new copy of a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    return folder


def toml(table: dict[str, Any]) -> str:
    """Return a file with one key of the top a line."""
    return "".join(f"{_toml(key)} = {_toml(value)}\n" for key, value in table.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_toml(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value if item is not None)}]"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    text = json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
    return '""' if value is None else text


def paths(tree: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every node of nested dictionaries and lists, the root's first."""
    yield here
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield from paths(value, (*here, key))


def spoil(tree: Any, rng: Random) -> tuple[Any, str]:
    """Return a copy with one node replaced, removed, renamed or added, and which."""
    tree = json.loads(json.dumps(tree))
    nodes = list(paths(tree))[1:]
    # Depth first, so that a large table does not hide the others.
    depth = rng.choice(sorted({len(node) for node in nodes}))
    path = rng.choice([node for node in nodes if len(node) == depth])
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    place, key = ".".join(map(str, path)), path[-1]
    match rng.randrange(12):
        case 0:
            del holder[key]
            return tree, f"{place} removed"
        case 1 if isinstance(holder, dict):
            name = rng.choice(["", "x", "\x1b[31m", LONG, "a.b", "名", f"{key} "])
            holder[name] = holder.pop(key)
            return tree, f"{place} renamed to {name[:40]!a}"
    value = rng.choice(ODD)
    holder[key] = value
    return tree, f"{place} = {repr(value)[:60]!s}".encode("unicode_escape").decode()


def spoil_bytes(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Return a file's content damaged as disks, editors and transfers do."""
    middle = rng.randrange(1, max(2, len(data)))
    text = data.decode("latin-1")
    kinds: list[tuple[str, Callable[[], bytes]]] = [
        ("empty", lambda: b""),
        (f"cut after {middle} bytes", lambda: data[:middle]),
        ("7 bytes long", lambda: data[:7]),
        ("zeros", lambda: bytes(len(data))),
        (f"zeros from byte {middle}", lambda: data[:middle] + bytes(len(data) - middle)),
        ("random bytes", lambda: rng.randbytes(min(len(data), 10_000))),
        (f"one NUL at {middle}", lambda: data[:middle] + b"\0" + data[middle:]),
        (f"one byte 0xff at {middle}", lambda: data[:middle] + b"\xff" + data[middle:]),
        ("UTF-16", lambda: text.encode("utf-16")),
        ("UTF-8 with a mark", lambda: b"\xef\xbb\xbf" + data),
        ("twice", lambda: data + data),
        ("reversed", lambda: data[::-1]),
        (f"an escape at {middle}", lambda: data[:middle] + b"\x1b[31m" + data[middle:]),
        ("a page of brackets", lambda: b"[" * 100_000),
        ("carriage returns", lambda: data.replace(b"\n", b"\r")),
    ]
    what, damage = rng.choice(kinds)
    return damage(), what


def as_odd_file(path: Path, kind: str) -> None:
    """Put something in the place of a file that is no regular one."""
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to("nothing-here")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")


ODD_FILES = ("FIFO", "folder", "link to nothing", "link to itself", "device", "missing")
