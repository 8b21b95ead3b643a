"""What models are audited on: the rows of probed tasks, and the questions of general ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from clbench.audit import ability, items, relearn
from clbench.audit.models import AuditedModel
from clbench.audit.settings import AuditSettings


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

    @classmethod
    def load(cls, base: str, settings: AuditSettings, times: float = 1.0) -> Self:
        """Return at most `times` as many rows and questions of each task as the settings say.

        `base` names the model whose tokenizer fits the questions' prompts. Raises a ClbenchError as
        `items.load_items` and `ability.load`.
        """
        names, data, seed = settings.tasks, settings.folder, settings.seed
        _, others = ability.chosen(names)
        most = math.ceil(times * settings.rows)
        probed = items.load_items(others, data=data, rows=most, seed=seed)
        count, wordings = settings.questions, settings.rephrase
        asked, notes = ability.load(
            names, base=base, data=data, count=count, times=times, seed=seed, wordings=wordings
        )
        notes += [
            f"{each.name}: {each.training} of the {len(each.rows)} rows are from its training set; "
            "a model tuned on them looks better than it is."
            for each in probed
            if each.training
        ]
        return cls(probed, asked, notes)

    @property
    def sizes(self) -> dict[str, int]:
        """How many items each task has."""
        sizes = {each.name: len(each.rows) for each in self.probed}
        return sizes | {each.task.name: len(each.questions) for each in self.asked}

    def tests(self, base: AuditedModel, *, generic: bool) -> int:
        """Return how many changes will be judged together, that of the language loss included."""
        probes = (1 + items.has_head_for(base, each, generic=generic) for each in self.probed)
        return 1 + sum(probes) + ability.tests(self.asked)

    def reach(self, settings: AuditSettings) -> int:
        """Return how many rows the settings would have to say for as many as a task has here."""
        asked = (settings.questions or ability.usual(each.task) for each in self.asked)
        shares = [len(each.rows) / settings.rows for each in self.probed]
        shares += [len(e.questions) / count for e, count in zip(self.asked, asked, strict=True)]
        return math.ceil(settings.rows * max([1.0, *shares]))

    def lessons(
        self, settings: AuditSettings, device: torch.device
    ) -> dict[tuple[str, str], relearn.Lesson]:
        """Return other rows to relearn each task from; a DataError if a task has too few."""
        assert settings.relearn is not None
        rows, data, seed = settings.relearn, settings.folder, settings.seed
        general = partial(relearn.general_lesson, rows=rows, data=data, seed=seed, device=device)
        found = {(e.name, "behaviour"): relearn.lesson(e, rows, seed, device) for e in self.probed}
        found |= {(e.task.name, e.task.axis): general([e]) for e in self.asked if not e.task.rules}
        if formed := [e for e in self.asked if "format" in e.parts and e.task.form]:
            found[ability.WRITTEN_ANSWERS, "format"] = general(formed, form=True)
        return found
