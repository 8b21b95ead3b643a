"""The verdict of an audit in words, and the conditions that make it fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clbench.audit.changes import Change, Word
from clbench.audit.outcome import Audit, Between, Comparison, LanguageChange, ModelAudit, TaskChange
from clbench.core.errors import SettingsError, printable

REMEDY = (
    "What to try: clbench mend BASE TUNED --keep TASK --learn TASK --out DIR averages the weights "
    "with those of the base model, without training. In one benchmark of the built-in model, such "
    "averaging (wise-ft) kept 0.055 more accuracy on the old task and cost 0.074 on the new one. "
    "Training again with old rows mixed in (replay) kept 0.132 more and cost 0.090."
)
"""From the README: ten seeds, differences from plain fine-tuning."""
PARTS = ("language", "features", "behaviour")
FailPart = Literal["language", "features", "behaviour"]


def title(change: TaskChange | LanguageChange) -> str:
    """Return what a change is about."""
    if isinstance(change, LanguageChange):
        return "language"
    return f"{change.task}, {change.part}"


@dataclass(frozen=True)
class Line:
    """A line of the verdict: the word for a change, what it is about, and its numbers."""

    word: Word
    about: str
    numbers: str


def verdict(comparison: Comparison) -> list[Line]:
    """Return a line for each change, losses first."""
    order: tuple[Word, ...] = ("forgot", "unclear", "gained", "kept")
    both: list[TaskChange | LanguageChange] = [comparison.language, *comparison.tasks]
    return [
        Line(each.change.word, title(each), _numbers(each))
        for word in order
        for each in both
        if each.change.word == word
    ]


def _numbers(change: TaskChange | LanguageChange) -> str:
    text = interval(change.change)
    if isinstance(change, LanguageChange):
        return f"{text} nats"
    flips = change.flips
    return f"{text}, {flips.lost} lost and {flips.gained} gained of {flips.n} items"


def interval(change: Change) -> str:
    """Return a change with its interval."""
    values = (round(v, 3) + 0.0 for v in (change.difference, change.low, change.high))
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*values)


def headline(name: str, comparison: Comparison) -> str:
    """Return the verdict of a model in one line."""
    what = {
        "forgot": "forgot something",
        "unclear": "no loss is shown, but some changes are unclear",
        "gained": "no loss is shown, and a gain is",
        "kept": "all changes are within the margin",
    }
    return f"{printable(name)}: {what[comparison.word]}"


def between(pair: Between) -> str:
    """Return the title of a comparison of two tuned models."""
    return f"{printable(pair.second)} compared with {printable(pair.first)}:"


def certainty(audit: Audit) -> str:
    """Return what the words mean, and how sure they are."""
    number, margin = len(audit.models[0].comparison.changes), audit.settings["margin"]
    return (
        "Differences are tuned minus base in accuracy and, for language, base minus tuned in loss "
        f"(nats per token): negative is worse. Kept: the interval lies within ±{margin:g}. Forgot "
        "or gained: otherwise, if it excludes 0. Unclear: neither. Holm's correction covers the "
        f"{number} tests of each model (exact McNemar tests of flipped items, a paired t test of "
        "losses): if no measure truly differs, a model is said to have forgotten or gained "
        "something with a probability of at most 5 %."
    )


def failures(audit: Audit, conditions: Sequence[tuple[FailPart, float]]) -> list[str]:
    """Return a line for each change that fails a condition.

    A condition such as ``("features", -0.02)`` fails if a change of that part is below the number
    and its interval below 0.
    """
    return [
        f"--fail-if {part}:{least:g}: {printable(model.name)} fails on {title(each)}, "
        f"{interval(each.change)}."
        for model in audit.models
        for part, least in conditions
        for each in _of(model, part)
        if each.change.difference < least and each.change.high < 0
    ]


def _of(model: ModelAudit, part: FailPart) -> Sequence[TaskChange | LanguageChange]:
    if part == "language":
        return [model.comparison.language]
    return model.comparison.of(part)


def parse_condition(text: str) -> tuple[FailPart, float]:
    """Return part and number of a condition such as ``features:-0.02``.

    Raises
    ------
    SettingsError
        If it has another form, or the number is not below 0.
    """
    part, _, number = text.partition(":")
    try:
        least = float(number)
    except ValueError:
        least = 0.0
    for known in PARTS:
        if part.strip() == known and -100.0 <= least < 0.0:
            return known, least  # type: ignore[return-value]
    raise SettingsError(
        f"--fail-if {text!r}: must be PART:X. PART is one of {', '.join(PARTS)}, and X is a number "
        "from -100 to below 0, such as features:-0.02."
    )
