"""A valid folder, and what hypothesis puts in the place of its values and bytes."""

import copy
import json
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from helpers.workspace import make_toy_scenario
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

settings.register_profile(
    "faults",
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
CAMPAIGN = settings.get_profile("faults")


def is_campaign() -> bool:
    """Whether this is `make faults`."""
    return settings.default is CAMPAIGN


def any_input(test: Callable[..., None]) -> Callable[..., None]:
    """Let hypothesis draw many inputs in `make faults`, and always the same few elsewhere."""
    few = settings(CAMPAIGN, max_examples=6, derandomize=True)
    return (CAMPAIGN if is_campaign() else few)(given(st.data())(test))


SUITE: dict[str, Any] = {
    "name": "small",
    "description": "A suite to spoil.",
    "methods": ["vanilla", "strong"],
    "seeds": [0],
    "protocol": {
        "model": "model", "epochs": 1, "lr": 0.002, "batch_size": 8, "max_length": 24,
        "curve_points": 2, "curve_rows": 8, "limit": 32, "precision": "float32",
    },
    "task": {
        name: {
            "train": f"{name}.csv", "validation": f"{name}-dev.csv", "text": "text",
            "label": "label", "labels": labels, "metrics": ["accuracy"],
        }
        for name, labels in {"mood": ["down", "up"], "thing": ["film", "story"]}.items()
    },
    "baseline": {"strong": {"of": "ewc", "settings": {"importance": 9.0, "examples": 8}}},
    "scenario": [{"name": "pair", "shift": "dataset", "tasks": ["mood", "thing"]}],
}  # fmt: skip
RUN = ["run", "small.toml", "--out", "out", "--threads", "1"]
REPORT = ["report", "out", "--formats", "png"]
COMPARE = ["compare", "out", "out2", "--formats", "png"]
ODD_FILES = ("FIFO", "folder", "link to nothing", "link to itself", "device", "missing")


def make_folder(folder: Path) -> None:
    """Write a checkpoint, rows and a suite, all valid."""
    folder.mkdir()
    make_toy_scenario(folder)
    write_suite(folder)


def write_suite(folder: Path, **changes: Any) -> None:
    """Write small.toml, with other values at the top."""
    (folder / "small.toml").write_text(toml({**SUITE, **changes}), encoding="utf-8")


def as_odd_file(path: Path, kind: str) -> None:
    """Put something in the place of a file that is no regular one."""
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "missing":
        links = {"link to nothing": "nothing-here", "link to itself": path.name}
        path.symlink_to(links.get(kind, "/dev/zero"))


def toml(table: dict[str, Any]) -> str:
    """Return a TOML file with one key of the top a line; it has no null, but an empty text."""
    text = "".join(f"{_inline(key)} = {_inline(value)}\n" for key, value in table.items())
    for json_word, word in {"NaN": "nan", "Infinity": "inf", "null": '""', "\x7f": ""}.items():
        text = text.replace(json_word, word)
    return text


def _inline(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", " = "))


LONG = "x" * 5_000
HARD = (
    [], {}, "", None, True, False, -1, 0, 0.5, 1e308, -1e308, float("nan"), float("inf"), 10**30,
    2**63, 2**32, LONG, "\x1b[31mred\x07\x00", "line\nbreak", "a\u202eb\u2066c", "1", "nan", "名前",
    "<script>alert(1)</script>", "../../up", "/dev/null", "a--b", [[]], [None], [1, 2], ["x", "x"],
    {"a": 1}, {"a": {"b": []}}, "model", "small.toml", [f"zz{n}" for n in range(10_000)],
    {f"k{n}": 1 for n in range(10_000)},
)  # fmt: skip
"""Values that found faults."""
texts = st.text(max_size=30)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.sampled_from(HARD) | st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
names = st.sampled_from(["", "x", "\x1b[31m", LONG, "a.b", "名"]) | texts
Draw = Callable[[st.SearchStrategy[Any]], Any]


def one_of(draw: Draw, *choices: Any) -> Any:
    """Return one of the choices."""
    return draw(st.sampled_from(choices))


def spoil_file(draw: Draw, path: Path) -> str:
    """Spoil a value in a JSON or TOML file, or bytes of any file; return what is wrong with it."""
    forms: dict[str, Any] = {".json": (json.loads, json.dumps), ".toml": (tomllib.loads, toml)}
    if path.suffix in forms and one_of(draw, True, True, True, False):
        read, write = forms[path.suffix]
        tree, what = spoil(draw, read(path.read_text(encoding="utf-8")))
        path.write_text(write(tree), encoding="utf-8")
    else:
        content, what = damage(draw, path.read_bytes())
        path.write_bytes(content)
    return f"{path.name}: {what}"


def spoil(draw: Draw, tree: Any) -> tuple[Any, str]:
    """Return a copy with one node replaced, removed or renamed, and which."""
    tree = copy.deepcopy(tree)
    nodes = list(_paths(tree))[1:]
    # Depth first, so that a large table does not hide the others.
    depth = one_of(draw, *sorted({len(node) for node in nodes}))
    *parents, key = one_of(draw, *(node for node in nodes if len(node) == depth))
    holder, place = tree, ".".join(map(str, [*parents, key]))
    for parent in parents:
        holder = holder[parent]
    how = one_of(draw, *["replaced"] * 8, "removed", "renamed")
    if how == "removed":
        del holder[key]
        return tree, f"{place} removed"
    if how == "renamed" and isinstance(holder, dict):
        name = draw(names)
        holder[name] = holder.pop(key)
        return tree, f"{place} renamed to {name[:40]!a}"
    value = draw(values)
    holder[key] = value
    return tree, f"{place} = {ascii(value)[:60]}"


def _paths(tree: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every node of nested dictionaries and lists, the root's first."""
    yield here
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _paths(value, (*here, key))


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "empty": lambda data, at: b"",
    "cut": lambda data, at: data[:at],
    "zeros": lambda data, at: data[:at] + bytes(len(data) - at),
    "UTF-16": lambda data, at: data.decode("latin-1").encode("utf-16"),
    "with a mark of UTF-8": lambda data, at: b"\xef\xbb\xbf" + data,
    "twice": lambda data, at: data + data,
    "reversed": lambda data, at: data[::-1],
    "brackets": lambda data, at: b"[" * 100_000,
    "carriage returns": lambda data, at: data.replace(b"\n", b"\r"),
}
"""What disks, editors and transfers do to a file, some of it from byte `at` on."""


def damage(draw: Draw, data: bytes) -> tuple[bytes, str]:
    """Return a file's content with bytes replaced, or damaged in another way, and how."""
    at = draw(st.integers(0, len(data)))
    how = one_of(draw, "", "", "", *DAMAGES)
    if how:
        return DAMAGES[how](data, at), f"{how}, {at}"
    new = draw(st.sampled_from([b"\0", b"\xff", b"\x1b[31m"]) | st.binary(max_size=50))
    end = at + draw(st.integers(0, 50))
    return data[:at] + new + data[end:], f"bytes {at} to {end} replaced by {new!a}"
