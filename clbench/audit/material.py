"""What models are audited on: the rows of probed tasks, and the questions of general ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clbench.audit import ability, items, relearn
from clbench.audit.models import AuditedModel


@dataclass(frozen=True)
class Material:
    """Rows and questions, the same for all models.

    Attributes
    ----------
    probed, asked
        Rows of classification tasks, and questions of general tasks.
    notes
        What a reader should know of them.
    """

    probed: Sequence[items.Items]
    asked: Sequence[ability.Asked]
    notes: Sequence[str] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """How many items each task has."""
        sizes = {each.name: len(each.rows) for each in self.probed}
        return sizes | {each.task.name: len(each.questions) for each in self.asked}

    def tests(self, base: AuditedModel, *, generic: bool) -> int:
        """Return how many changes will be judged together, that of the language loss included."""
        probes = (1 + items.has_head_for(base, each, generic=generic) for each in self.probed)
        return 1 + sum(probes) + ability.tests(self.asked)


@dataclass(frozen=True)
class Source:
    """Where rows and questions come from.

    Attributes
    ----------
    tasks
        All tasks by name, as `clbench.audit.audit.audit` takes them.
    base
        The base model, whose tokenizer fits the questions' prompts.
    data
        Folder with copies of hub repositories.
    seed, wordings
        Seed of the sample, and in how many wordings a question is asked.
    """

    tasks: Sequence[str]
    base: str
    data: Path | None
    seed: int
    wordings: int

    def load(self, rows: int, questions: int | None, times: float = 1.0) -> Material:
        """Return at most `times` that many rows and questions of each task.

        Raises a ClbenchError as `items.load_items` and `ability.load`.
        """
        _, others = ability.chosen(self.tasks)
        most = math.ceil(times * rows)
        probed = items.load_items(others, data=self.data, rows=most, seed=self.seed)
        where: dict[str, Any] = {"base": self.base, "data": self.data, "seed": self.seed}
        asked, notes = ability.load(
            self.tasks, **where, count=questions, times=times, wordings=self.wordings
        )
        return Material(probed, asked, notes)

    def lessons(
        self, material: Material, rows: int, device: torch.device
    ) -> dict[tuple[str, str], relearn.Lesson]:
        """Return rows to relearn each task from, other than those of the material.

        Raises a DataError if a task has too few.
        """
        own = {
            (each.name, "behaviour"): relearn.lesson(each, rows, self.seed, device)
            for each in material.probed
        }
        return own | {
            (each.task.name, each.task.axis): relearn.general_lesson(
                each, rows, self.data, self.seed, device
            )
            for each in material.asked
            if not each.task.rules
        }


def reach(material: Material, rows: int, questions: int | None) -> int:
    """Return how many rows the task that has most stands for, if it had been asked for `rows`."""
    shares = [len(each.rows) / rows for each in material.probed]
    shares += [len(e.questions) / (questions or ability.usual(e.task)) for e in material.asked]
    return math.ceil(rows * max([1.0, *shares]))
