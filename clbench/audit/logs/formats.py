"""The registry of log formats, and what readers share."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from clbench.core import errors
from clbench.core.files import not_utf8, user_path
from clbench.core.registry import Registry


class Metric(NamedTuple):
    """A metric: its name, whether lower is better, and its range where the log has it."""

    name: str
    falling: bool = False
    low: float | None = None
    high: float | None = None


class Entry(NamedTuple):
    """An item of a log, or some of its metrics.

    `run` tells runs of one model apart, `item` is the harness's id, `given` a digest of the input.
    `scores` has values as they are logged (None is no score), the one that decides first. `choices`
    counts the answers to choose from. `prompting` is how prompts are made, such as ``5 shots``.
    What the log does not say is 0 or empty.
    """

    task: str
    run: str
    item: str
    given: str
    scores: Mapping[Metric, Any]
    choices: int = 0
    model: str = ""
    prompting: str = ""


FORMATS: Registry[Callable[[Path], Iterator[Entry]]] = Registry(
    "log format", group="clbench.log_formats"
)
"""Readers by the pattern of their files' names; if several match, the longest counts.

A reader yields the entries of a file, and none if it is something else. Any error is a damaged log.
"""


class OtherColumnsError(Exception):
    """A table is no log; the message has its columns."""


def read_entries(name: str) -> Iterator[Entry]:
    """Yield the entries of a log, or of all logs in a folder; a DataError if there are none."""
    if not (path := user_path(name, "log")).exists():
        missing = errors.describe_missing(path, "log")
        raise errors.DataError(f"{name}: {missing}. Name a log, or a folder of logs.")
    for module in pkgutil.iter_modules(importlib.import_module(__package__).__path__):
        importlib.import_module(f"{__package__}.{module.name}")
    found, others = False, ""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        cased = file.stem + file.suffix.lower()
        matching = [pattern for pattern in FORMATS if fnmatch(cased, pattern)]
        if matching and file.is_file():
            try:
                for entry in FORMATS.get(max(matching, key=len))(file):
                    found = True
                    yield entry
            except OtherColumnsError as columns:
                others = f"; {file} has {columns}"
            except errors.ClbenchError:
                raise
            except UnicodeDecodeError as error:
                text = f"{file}{not_utf8(file.read_bytes(), str(file))}"
                raise errors.DataError(text) from error
            except Exception as error:
                reason = f"{type(error).__name__}: {errors.error_text(error)}"
                if isinstance(error, KeyError):
                    reason = f"an item has no {errors.error_text(error)}"
                text = f"{file} is not a whole log of its format ({reason})."
                raise errors.DataError(
                    f"{text} Copy it again, or run the harness again."
                ) from error
    if not found:
        raise errors.DataError(
            f"{path}: there is no log with items. Logs are {errors.join_names(FORMATS)}, with at "
            "least one item. Tables need the columns task, item, and score or correct, separated "
            f"by commas{others}."
        )


def digest_of(*inputs: object) -> str:
    """Return a digest of an item's input."""
    texts = [each if isinstance(each, str) else json.dumps(each, default=str) for each in inputs]
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file; a DataError that names a line that is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = from_json(line)  # three times as fast as json
                wrong = (
                    "" if isinstance(row, dict) else f"{errors.describe_type(row)}, not an object"
                )
            except ValueError:
                wrong = "not complete JSON"
            if wrong:
                raise errors.DataError(
                    f"{path}, line {number}: is {wrong}. Copy the log again, or run the harness "
                    "again."
                )
            yield row
