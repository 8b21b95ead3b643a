"""An audit as its ``audit.json`` holds it: read without torch."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from clbench.audit.scores import PARTS
from clbench.core.errors import DataError
from clbench.core.files import read_file

FILE, FORMAT = "audit.json", "clbench-audit"
SCHEMA = 2
"""Version of the file; since 2, it holds every item."""


@dataclass(frozen=True)
class Measure:
    """A change: what was measured, its numbers and its items, which version 1 has not."""

    task: str
    part: str
    metric: str
    numbers: Mapping[str, Any]
    items: Mapping[str, Any]
    primary: bool = True

    @property
    def is_loss(self) -> bool:
        """Whether it is in nats, and lower is better."""
        return self.part == "language"

    @property
    def title(self) -> str:
        """What the change is about."""
        return str(
            self.items.get("title", self.task if self.is_loss else f"{self.task}, {self.part}")
        )

    def __str__(self) -> str:
        bounds = (round(self.numbers[key], 3) + 0.0 for key in ("difference", "low", "high"))
        return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*bounds)


@dataclass(frozen=True)
class Record:
    """The content of the file, and the folder in which it is."""

    folder: Path
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the audit in a folder or file; a DataError if there is none, or it is damaged."""
        file = path / FILE if path.is_dir() else path
        with checked(file):
            content = json.loads(read_file(file))
            if content["format"] != FORMAT or not 1 <= content["schema_version"] <= SCHEMA:
                raise ValueError("its format or version is unknown")
            return cls(file.parent, content)


@contextmanager
def checked(file: Path) -> Iterator[None]:
    """Turn what a missing or damaged file raises into a DataError of one line."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file} is not an audit of this clbench ({type(error).__name__}: {error}). Give the "
            f"folder or {FILE} that clbench audit wrote."
        ) from error


def measures(model: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield the changes of an entry of ``models``, part by part; exploratory ones last."""
    tables = {(t["task"], t["part"], t["metric"]): t for t in model.get("items", ())}
    language = next((task for task, part, _ in tables if part == "language"), "language")
    parts = {part: model.get(part, {}) for part in PARTS}
    parts["language"] = {language: parts["language"]} if parts["language"] else {}
    entries = [(task, part, e) for part, tasks in parts.items() for task, e in tasks.items()]
    entries += [(e["task"], e["part"], e) for e in model.get("exploratory", ())]
    for task, part, entry in entries:
        metric = entry.get("metric", "loss" if part == "language" else "accuracy")
        table = tables.get((task, part, metric), {})
        yield Measure(task, part, metric, entry, table, primary="task" not in entry)
