"""A stand-in for what a scenario is built with, and tasks of a few made-up rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clbench.core.errors import UnknownNameError
from clbench.shifts.scenario import Scenario, build_scenario
from clbench.tasks.task import Rows, Task


@dataclass
class FakeContext:
    """Tasks from a table; a text's embedding and length follow from the text itself.

    Texts are written ``"x y word word"``: the first two words are its embedding, and its
    tokens are the words after them.
    """

    tasks: Mapping[str, Task]
    seed: int = 0
    base: Path = Path()
    embedded: list[Rows] = field(default_factory=list)

    def task(self, name: str) -> Task:
        if name not in self.tasks:
            raise UnknownNameError(f"Unknown task {name!r}.")
        return self.tasks[name]

    def lengths(self, rows: Rows) -> np.ndarray:
        second = rows.second or [""] * len(rows)
        both = zip(rows.first, second, strict=True)
        return np.array([max(0, len(a.split()) - 2) + len(b.split()) for a, b in both])

    def embed(self, rows: Rows) -> np.ndarray:
        self.embedded.append(rows)
        return np.array([[float(word) for word in text.split()[:2]] for text in rows.first], "f4")


@dataclass
class Spec:
    """A scenario of a suite file."""

    shift: str
    settings: dict[str, Any]
    name: str = "pair"


def build(spec: Spec, context: FakeContext, **options: Any) -> Scenario:
    return build_scenario(spec.name, spec.shift, spec.settings, context, **options)


def text(x: float = 0.0, y: float = 0.0, words: int = 0) -> str:
    return " ".join([f"{x:g}", f"{y:g}", *["word"] * words])


def make_task(
    train: list[str],
    validation: list[str],
    *,
    name: str = "base",
    labels: tuple[list[int], list[int]] | None = None,
    second: tuple[list[str], list[str]] | None = None,
) -> Task:
    """A task of two classes, which alternate by default."""
    sides = labels or ([i % 2 for i in range(len(train))], [i % 2 for i in range(len(validation))])
    pairs = second or (None, None)
    return Task(
        name,
        ("no", "yes"),
        ("accuracy",),
        Rows.of(train, pairs[0], sides[0]),
        Rows.of(validation, pairs[1], sides[1]),
        head=name,
        source={"origin": "here"},
    )
