"""The registry of log formats, and what readers share."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic_core import from_json

from clbench.core.errors import ClbenchError, DataError, describe_missing, error_text, join_names
from clbench.core.files import user_path
from clbench.core.registry import Registry


@dataclass(eq=False)
class Setup:
    """One run of a task in a log.

    Attributes
    ----------
    task, run, model
        The task, what tells runs of one model apart, and the model's name, if the log has it.
    prompting
        How prompts are made, in words such as ``5 shots``; empty if the log does not say.
    falling
        Metrics of which lower is better.
    ranges
        Least and greatest score by metric, where the log has them.
    """

    task: str
    run: str
    model: str = ""
    prompting: str = ""
    falling: frozenset[str] = frozenset()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Entry(NamedTuple):
    """An item of a log, or some of its metrics.

    `item` is the harness's id, `given` a digest of the input, `scores` has values by metric as they
    are logged (None is no score), the one that decides first, and `choices` is the number of
    answers to choose from, or 0.
    """

    setup: Setup
    item: str
    given: str
    scores: Mapping[str, Any]
    choices: int = 0


class Reader(Protocol):
    """A registered reader of files whose names match a pattern."""

    patterns: tuple[str, ...]

    def __call__(self, path: Path, /) -> Iterator[Entry]:
        """Yield the entries of a file; none if it is something else. Any error is a damaged log."""
        ...


Function = TypeVar("Function", bound=Callable[[Path], Iterator[Entry]])
FORMATS: Registry[Reader] = Registry("log format", group="clbench.log_formats")


def log_format(name: str, *patterns: str) -> Callable[[Function], Function]:
    """Register the reader of files of these names; if several match, the longest pattern counts."""

    def decorate(function: Function) -> Function:
        function.patterns = patterns  # type: ignore[attr-defined]
        return FORMATS.register(name)(function)

    return decorate


def read_entries(name: str) -> Iterator[Entry]:
    """Yield the entries of a log, or of all logs in a folder; a DataError if there are none."""
    if not (path := user_path(name, "log")).exists():
        raise DataError(
            f"{name}: {describe_missing(path, 'log')}. Name a log, or a folder of logs."
        )
    for module in pkgutil.iter_modules(importlib.import_module(__package__).__path__):
        importlib.import_module(f"{__package__}.{module.name}")
    readers = {pattern: r for r in map(FORMATS.get, FORMATS) for pattern in r.patterns}
    found = False
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        matching = [pattern for pattern in readers if fnmatch(file.name, pattern)]
        if matching and file.is_file():
            try:
                for entry in readers[max(matching, key=len)](file):
                    found = True
                    yield entry
            except ClbenchError:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {error_text(error)}"
                raise DataError(f"{file} is not a whole log ({reason}). Copy it again.") from error
    if not found:
        raise DataError(
            f"{path}: there is no log with items. Logs are files such as {join_names(readers)}; "
            "tables have the columns task, item, and score or correct."
        )


def digest_of(*inputs: object) -> str:
    """Return a digest of an item's input."""
    texts = [each if isinstance(each, str) else json.dumps(each, default=str) for each in inputs]
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file; a DataError that names a line that is cut off."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                if line.strip():
                    yield from_json(line)  # three times as fast as json
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number}: is not complete JSON. Copy the log again, or run the "
                    "harness again."
                ) from error
