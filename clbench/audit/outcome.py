"""What an audit found, and how it is written to ``audit.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from clbench.audit.changes import Change, Flips, Word
from clbench.audit.drift import Drift

Part = Literal["features", "behaviour"]
SCHEMA = 1
LOST = ("chance_adjusted_loss", "chance_adjusted_low", "chance_adjusted_high")
LEAST_ABOVE = 0.05
"""Least accuracy above chance of which a share is taken: those of less are noise."""


@dataclass(frozen=True)
class Flipped:
    """An item that only one of two models gets right."""

    texts: tuple[str, ...]
    label: str
    base: str
    tuned: str
    lost: bool
    """Whether it is the base model that gets it right."""


@dataclass(frozen=True)
class TaskChange:
    """What a tuned model lost of a task.

    Attributes
    ----------
    part
        ``features``, by a linear probe, or ``behaviour``, by the model's own head.
    base, tuned, chance
        Accuracies of both models and of always saying the most frequent class.
    items
        Some of the flipped items.
    """

    task: str
    part: Part
    base: float
    tuned: float
    chance: float
    flips: Flips
    change: Change
    items: tuple[Flipped, ...] = field(default=(), repr=False)

    @property
    def lost_share(self) -> tuple[float, float, float] | None:
        """Share that is lost of what the base model knew above chance, and its interval.

        That of the difference, divided by the base model's accuracy above chance; None if that is
        less than `LEAST_ABOVE`.
        """
        above = self.base - self.chance
        if above < LEAST_ABOVE:
            return None
        return -self.change.difference / above, -self.change.high / above, -self.change.low / above

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "n": self.flips.n,
            "flips_lost": self.flips.lost,
            "flips_gained": self.flips.gained,
            "base": self.base,
            "tuned": self.tuned,
            "chance": self.chance,
            **dict(zip(LOST, self.lost_share or (None, None, None), strict=True)),
            **_change(self.change),
        }


@dataclass(frozen=True)
class LanguageChange:
    """Mean losses of both models on held-out texts, in nats per token; a fall of it is better."""

    description: str
    base: float
    tuned: float
    change: Change

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "what": self.description,
            "base": self.base,
            "tuned": self.tuned,
            **_change(self.change),
        }


@dataclass(frozen=True)
class Comparison:
    """A model compared with another: one family of tests."""

    language: LanguageChange
    tasks: tuple[TaskChange, ...]

    @property
    def changes(self) -> list[Change]:
        """All changes."""
        return [self.language.change, *(task.change for task in self.tasks)]

    @property
    def word(self) -> Word:
        """The verdict: a loss counts most, then doubt, then a gain."""
        words = {change.word for change in self.changes}
        order: tuple[Word, ...] = ("forgot", "unclear", "gained", "kept")
        return next(word for word in order if word in words)

    def of(self, part: Part) -> list[TaskChange]:
        """Return the changes of one part."""
        return [task for task in self.tasks if task.part == part]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        parts: tuple[Part, ...] = ("features", "behaviour")
        return {
            "verdict": self.word,
            "language": self.language.to_json(),
            **{part: {task.task: task.to_json() for task in self.of(part)} for part in parts},
        }


@dataclass(frozen=True)
class PutBack:
    """What a tuned model regains if one group of layers gets the base model's weights back.

    `features` is the change of the mean accuracy over the tasks, `language` that of the loss with
    its sign turned: above 0 is better than the tuned model.
    """

    name: str
    features: float
    language: float


@dataclass(frozen=True)
class ModelAudit:
    """What is known of one tuned model."""

    name: str
    comparison: Comparison
    layers: tuple[Drift, ...]
    put_back: tuple[PutBack, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "model": self.name,
            **self.comparison.to_json(),
            "layers": [
                {"name": layer.name, "weights": layer.weights, "cka": layer.similarity}
                for layer in self.layers
            ],
            "put_back": [
                {"name": each.name, "features": each.features, "language": each.language}
                for each in self.put_back
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Between:
    """Two tuned models compared: the second from the first."""

    first: str
    second: str
    comparison: Comparison


@dataclass(frozen=True)
class Audit:
    """The result of `clbench.audit.audit.audit`.

    Attributes
    ----------
    settings
        What decided the result besides the models.
    """

    base: str
    models: tuple[ModelAudit, ...]
    between: tuple[Between, ...]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``audit.json``."""
        return {
            "format": "clbench-audit",
            "schema_version": SCHEMA,
            "base": self.base,
            "settings": self.settings,
            "models": [model.to_json() for model in self.models],
            "between": [
                {"first": pair.first, "second": pair.second, **pair.comparison.to_json()}
                for pair in self.between
            ],
            "notes": list(self.notes),
        }


def _change(change: Change) -> dict[str, Any]:
    return {
        "difference": change.difference,
        "low": change.low,
        "high": change.high,
        "level": change.level,
        "p": change.p,
        "p_holm": change.p_holm,
        "verdict": change.word,
    }
