"""An audit as its ``audit.json`` holds it: read without torch."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

from clbench.audit.scores import FALLING, PARTS, Part
from clbench.core.errors import DataError
from clbench.core.files import read_file

Role = Literal["base", "tuned"]
FILE, FORMAT = "audit.json", "clbench-audit"
SCHEMA = 2
"""Version of the file; since 2, it holds every item."""


@dataclass(frozen=True)
class Measure:
    """A change: its numbers, its items, and whether the task is judged by it."""

    numbers: Mapping[str, Any]
    items: Mapping[str, Any]
    primary: bool

    @property
    def part(self) -> Part:
        """What the change is about."""
        return cast(Part, self.items["part"])

    @property
    def title(self) -> str:
        """The measure in words."""
        return str(self.items["title"])

    @property
    def is_loss(self) -> bool:
        """Whether it is in nats."""
        return self.part == "language"

    @property
    def lower_is_better(self) -> bool:
        """Whether scores are losses or errors."""
        return self.part in FALLING

    def scores(self, role: Role) -> list[float]:
        """Return a model's score on each item, with the sign of their mean in `numbers`.

        Earlier versions wrote those of calibration with the other sign.
        """
        scores, mean = self.items[role], self.numbers[role]
        return [-each for each in scores] if mean * sum(scores) < 0 else [*scores]

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
        if not file.exists():
            raise DataError(
                f"{path}: there is no {FILE}. Give the folder that clbench audit wrote."
            )
        with checked(file):
            content = json.loads(read_file(file))
            if (content["format"], content["schema_version"]) != (FORMAT, SCHEMA):
                raise ValueError("its format or version is another")
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


def measures(model: Mapping[str, Any]) -> list[Measure]:
    """Return the changes of an entry of ``models``, part by part; exploratory ones last."""
    more = {(e["task"], e["part"], e["metric"]): e for e in model.get("exploratory", ())}
    found = []
    for items in model["items"]:
        task, part = items["task"], items["part"]
        numbers = more.get((task, part, items["metric"]))
        if primary := numbers is None:
            numbers = model[part] if part == "language" else model[part][task]
        found.append(Measure(numbers, items, primary))
    return sorted(found, key=lambda each: (not each.primary, PARTS.index(each.part)))
