"""The registry of log formats, and what readers share."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from clbench.core.errors import DataError, format_value
from clbench.core.registry import Registry


@dataclass(frozen=True)
class Setup:
    """What a log says about one run of one task.

    Attributes
    ----------
    task, run
        The task's name, and what tells runs of one model apart.
    model
        The model's name in the log; empty if it has none.
    prompting
        How prompts are made, in words, such as ``5 shots``; empty if the log does not say.
    metrics
        The metrics in the harness's order: the first one decides. Others follow as they come.
    falling
        Metrics of which lower is better.
    ranges
        Least and greatest scores by metric, where the log has them.
    """

    task: str
    run: str
    model: str = ""
    prompting: str = ""
    metrics: tuple[str, ...] = ()
    falling: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, float, float], ...] = ()


class Entry(NamedTuple):
    """One item of a log; an item may have several, with other metrics in each.

    `item` is the harness's id, `given` a digest of the input, `scores` has values by metric as the
    log has them (None is no score), `choices` is the number of answers to choose from or 0, and
    `where` names the place in messages.
    """

    setup: Setup
    item: str
    given: str
    scores: Mapping[str, Any]
    choices: int
    where: str


class Reader(Protocol):
    """A registered reader of logs."""

    pattern: str
    fallback: bool

    def __call__(self, path: Path, /) -> Iterator[Entry]:
        """Yield the items of a log file; none if the file is no log of this format."""
        ...


Function = TypeVar("Function", bound=Callable[[Path], Iterator[Entry]])


def _format_error(name: str, entry: object) -> str | None:
    return None if hasattr(entry, "pattern") else "decorate it with @log_format('name', '*.ext')"


FORMATS: Registry[Reader] = Registry("log format", check=_format_error, group="clbench.log_formats")


def log_format(
    name: str, pattern: str, *, fallback: bool = False
) -> Callable[[Function], Function]:
    """Register a reader of logs: a function of a file's path that yields entries.

    Files are read whose names match `pattern`. Of several patterns that match, the longest counts.
    In a folder that has logs, files of a format that is a `fallback` are something else.
    """

    def decorate(function: Function) -> Function:
        function.pattern, function.fallback = pattern, fallback  # type: ignore[attr-defined]
        return FORMATS.register(name)(function)

    return decorate


@cache
def readers() -> tuple[Reader, ...]:
    """Return all readers, longest pattern first; imports the modules of this package."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    return tuple(sorted(map(FORMATS.get, FORMATS), key=lambda reader: -len(reader.pattern)))


def reader_of(path: Path) -> Reader | None:
    """Return the reader of a file by its name."""
    return next((reader for reader in readers() if fnmatch(path.name, reader.pattern)), None)


def digest_of(*texts: object) -> str:
    """Return a digest of an item's input; what is no text is written as JSON."""
    parts = [each if isinstance(each, str) else json.dumps(each, default=str) for each in texts]
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the object of each line of a JSON Lines file.

    Raises a DataError that names the line if it is not a whole JSON object.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, json_object(line, where)


def json_object(content: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object; a DataError that begins with `where` if it is not a whole one."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: is not complete JSON ({error}). The log may be cut off: copy it again, or "
            "run the harness again."
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: must be a JSON object, got {format_value(value)}.")
    return value


def get(row: Mapping[str, Any], key: str, where: str) -> Any:
    """Return the value of a key that a log must have; a DataError that names it if it is missing."""
    if key not in row:
        raise DataError(f"{where}: has no {key!r}, as logs of this format have.")
    return row[key]
