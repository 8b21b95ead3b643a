"""What a model scored on each item, from whatever source: the currency of audits.

Probes, heads, language losses, capabilities and the logs of other harnesses yield `ItemScores`;
`clbench.audit.changes` compares two of them on the items that both models have seen.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import numpy as np

Part = Literal[
    "behaviour",
    "knowledge",
    "reasoning",
    "arithmetic",
    "instructions",
    "reading",
    "format",
    "calibration",
    "features",
    "language",
]
PARTS: tuple[Part, ...] = get_args(Part)
"""What a measure is about; what a model is used for comes first."""
FALLING: tuple[Part, ...] = ("calibration", "language")
"""Parts that are shown with their sign turned: losses and errors, of which lower is better."""
Floats = np.typing.NDArray[np.float64]
Bools = np.typing.NDArray[np.bool_]


@dataclass(frozen=True)
class ItemScores:
    """What a model scored on each item of a task by one metric.

    Attributes
    ----------
    task, part, metric
        What was measured; two models are compared where all three are equal.
    scores
        Shape (n,), higher is better; 0 and 1 where an item is wrong or right.
    keys
        What identifies each item, all different: a digest of what the model was given.
    chance
        Mean score of guessing; None if that is not known.
    choices
        Answers of which one is right, if every item has as many.
    primary
        Whether the metric is the one by which the task is judged; others are exploratory.
    description
        The measure in words.
    texts, answers, said
        What the model was given, the right answers, and the model's own, item by item; or empty.
    unit
        What the items are, in the plural.
    source
        Where the items are from, as far as known: ``hub``, ``config``, ``split``, ``revision``.
    """

    task: str
    part: Part
    scores: Floats
    keys: tuple[str, ...]
    metric: str = "accuracy"
    chance: float | None = None
    choices: int | None = None
    primary: bool = True
    description: str = ""
    texts: tuple[str, ...] = field(default=(), repr=False)
    answers: tuple[str, ...] = field(default=(), repr=False)
    said: tuple[str, ...] = field(default=(), repr=False)
    unit: str = "items"
    source: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def what(self) -> tuple[str, Part, str]:
        """Task, part and metric."""
        return self.task, self.part, self.metric


@dataclass(frozen=True)
class Paired:
    """Scores of two models on the items that both have, in one order.

    Attributes
    ----------
    keys, base, tuned
        The items, and both models' scores, shape (n,).
    """

    keys: tuple[str, ...]
    base: Floats
    tuned: Floats

    @classmethod
    def of(cls, base: ItemScores, tuned: ItemScores) -> Self:
        """Return the scores of two models on the items that both have."""
        if base.keys == tuned.keys:
            return cls(base.keys, base.scores, tuned.scores)
        at = {key: i for i, key in enumerate(tuned.keys)}
        both = [(i, at[key]) for i, key in enumerate(base.keys) if key in at]
        ones, twos = np.array(both, dtype=np.int64).reshape(-1, 2).T
        return cls(tuple(base.keys[i] for i in ones), base.scores[ones], tuned.scores[twos])

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def is_binary(self) -> bool:
        """Whether every score is 0 or 1."""
        return all(bool(np.isin(scores, (0.0, 1.0)).all()) for scores in (self.base, self.tuned))

    @property
    def largest(self) -> float:
        """Largest difference of an item: 1 for scores from 0 to 1, else the largest one seen."""
        both = np.concatenate([self.base, self.tuned])
        if both.min() >= 0.0 and both.max() <= 1.0:
            return 1.0
        return float(np.abs(self.tuned - self.base).max())


SEPARATOR = "\x1f"
"""Stands between the texts of an item in its input."""


def keys_of(inputs: Iterable[str]) -> tuple[str, ...]:
    """Return a digest of each item's input, 16 hexadecimal digits; equal ones are numbered."""
    seen: Counter[str] = Counter()
    keys = []
    for text in inputs:
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key}-{seen[key]}")
    return tuple(keys)
