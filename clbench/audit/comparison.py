"""Two models compared: the change of each measure, judged as one family."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from clbench.audit.chance import Share, beyond_chance, p_above
from clbench.audit.changes import UNCHANGED, Change, Flips, Floor, Sample, judge, mean_change
from clbench.audit.scores import FALLING, PARTS, SEPARATOR, ItemScores, Paired, Part
from clbench.results.statistics import ALPHA, Verdict, Word

LANGUAGE = "language"
LOSSES_FIRST: Sequence[Verdict] = ("worse", "no difference shown", "better", "equivalent")
LEAST_ABOVE = 0.05
"""Least accuracy above chance of which a share is taken: those of less are noise."""
MOST_SHOWN = 20
"""Flipped items of each kind that are kept to be read."""
CANNOT_SHOW = "cannot show forgetting: the base model is not shown to be above chance"


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
class MeasureChange:
    """What a tuned model lost by one measure.

    Attributes
    ----------
    measure
        What was measured, with the base model's scores.
    paired
        The scores of both models, shape (n,); those of language are minus the loss of each text.
    change
        The change of the mean, judged.
    items
        Some of the flipped items.
    cannot_show_forgetting
        Whether the base model is not shown to be above chance, so that it has nothing to lose.
    sample
        The change before it was judged with others.
    floor
        That of the tuned model's own score, if it has several runs.
    """

    measure: ItemScores
    paired: Paired = field(repr=False)
    change: Change
    items: tuple[Flipped, ...] = field(default=(), repr=False)
    cannot_show_forgetting: bool = False
    sample: Sample | None = field(default=None, repr=False)
    floor: Floor | None = field(default=None, repr=False)

    @property
    def task(self) -> str:
        """The task's name."""
        return self.measure.task

    @property
    def part(self) -> Part:
        """What the measure is about."""
        return self.measure.part

    @property
    def is_loss(self) -> bool:
        """Whether it is a loss in nats, which is shown as such: above 0, and lower is better."""
        return self.part == LANGUAGE

    @property
    def lower_is_better(self) -> bool:
        """Whether `base`, `tuned` and the table's items are losses or errors."""
        return self.part in FALLING

    @property
    def base(self) -> float:
        """Mean score of the base model; its mean loss or error for language and calibration."""
        return self._mean(self.paired.base)

    @property
    def tuned(self) -> float:
        """Mean score of the tuned model; its mean loss or error for language and calibration."""
        return self._mean(self.paired.tuned)

    def _mean(self, scores: Any) -> float:
        return (-1.0 if self.lower_is_better else 1.0) * float(scores.mean())

    @cached_property
    def flips(self) -> Flips | None:
        """Items that only one of both models gets right; None if items are not right or wrong."""
        pair = self.paired
        return Flips.of(pair.base == 1, pair.tuned == 1) if pair.is_binary else None

    @cached_property
    def beyond_chance(self) -> tuple[Share, Share] | None:
        """Shares lost and gained beyond chance; None where a guess is not one of k answers."""
        choices = self.measure.choices
        if self.flips is None or choices is None or choices < 2:
            return None
        return beyond_chance(self.paired, choices)

    @property
    def title(self) -> str:
        """What the change is about."""
        if self.is_loss:
            return self.task
        metric = "" if self.measure.metric == "accuracy" else f", {self.measure.metric}"
        return f"{self.task}, {self.part}{metric}"

    def __str__(self) -> str:
        remedy = self.change.remedy(self.measure.unit)
        if self.is_loss:
            return f"{self.change} nats{remedy}"
        n, flips = len(self.paired), self.flips
        items = f"{n} items"
        if flips is not None:
            items = f"{flips.lost} lost and {flips.gained} gained of {n} items"
        if self.beyond_chance is not None:
            lost, gained = (round(n * share.value) for share in self.beyond_chance)
            items += f" (beyond chance: {lost} and {gained})"
        mark = f"; {CANNOT_SHOW}" if self.cannot_show_forgetting else ""
        return f"{self.change}, {items}{remedy}{mark}"

    @property
    def lost_share(self) -> tuple[float, float, float] | None:
        """Share that is lost of what the base model knew above chance, and its interval.

        That of the difference, divided by the base model's score above chance; None if that is
        less than `LEAST_ABOVE`, or chance is not known.
        """
        if self.measure.chance is None or (above := self.base - self.measure.chance) < LEAST_ABOVE:
            return None
        change, low, high = self.change.difference, self.change.low, self.change.high
        return 0.0 - change / above, 0.0 - high / above, 0.0 - low / above  # never -0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        means = {"base": self.base, "tuned": self.tuned}
        if self.is_loss:
            return {"what": self.measure.description, **means, **self.change.to_json()}
        share, low, high = self.lost_share or (None, None, None)
        flips, beyond = self.flips, self.beyond_chance or (None, None)
        return {
            "metric": self.measure.metric,
            "n": len(self.paired),
            "flips_lost": None if flips is None else flips.lost,
            "flips_gained": None if flips is None else flips.gained,
            "choices": self.measure.choices,
            **{
                f"{way}_beyond_chance": None if each is None else each._asdict()
                for way, each in zip(("lost", "gained"), beyond, strict=True)
            },
            **means,
            "chance": self.measure.chance,
            "cannot_show_forgetting": self.cannot_show_forgetting,
            "chance_adjusted_loss": share,
            "chance_adjusted_low": low,
            "chance_adjusted_high": high,
            **self.change.to_json(),
        }

    def item_table(self, with_texts: bool) -> dict[str, Any]:
        """Return every item as lists of plain values; scores have the sign of `base`."""
        measure, pair = self.measure, self.paired
        kind = np.int64 if pair.is_binary else np.float64
        sign = -1 if self.lower_is_better else 1
        what = {"task": self.task, "part": self.part, "metric": measure.metric}
        table = {
            **what,
            "title": self.title,
            "source": dict(measure.source),
            "keys": [*pair.keys],
            "base": (sign * pair.base).astype(kind).tolist(),
            "tuned": (sign * pair.tuned).astype(kind).tolist(),
        }
        for name, texts in (("inputs", measure.texts), ("answers", measure.answers)):
            if texts and with_texts:
                by_key = dict(zip(measure.keys, texts, strict=True))
                table[name] = [by_key[key] for key in pair.keys]
        return table


@dataclass(frozen=True)
class Comparison:
    """A model compared with another.

    Attributes
    ----------
    changes
        The measures by which models are judged: one family of tests.
    exploratory
        Further metrics of the same tasks, each at its own level.
    identical
        Whether all weights are the same, and texts are read alike.
    alpha
        Error rate of the family: less than 0.05 if it is spent over several looks.
    """

    changes: tuple[MeasureChange, ...]
    identical: bool = False
    exploratory: tuple[MeasureChange, ...] = ()
    alpha: float = ALPHA

    @property
    def is_settled(self) -> bool:
        """Whether every change has a verdict but for those that cannot show forgetting."""
        return all(
            each.change.verdict != "no difference shown" or each.cannot_show_forgetting
            for each in self.changes
        )

    @property
    def language(self) -> MeasureChange | None:
        """The change of the language loss, if it was measured."""
        return next((each for each in self.changes if each.is_loss), None)

    @property
    def tasks(self) -> tuple[MeasureChange, ...]:
        """The changes on tasks."""
        return tuple(each for each in self.changes if not each.is_loss)

    @property
    def measures(self) -> list[MeasureChange]:
        """All measures by part; in each, losses come first, then doubts, gains, and the rest."""
        return sorted(
            self.changes, key=lambda m: (PARTS.index(m.part), LOSSES_FIRST.index(m.change.verdict))
        )

    @property
    def words(self) -> dict[str, Word]:
        """The verdict on each part: that of its first measure."""
        found = {each.part: each.change.word for each in reversed(self.measures)}
        return {part: found[part] for part in PARTS if part in found}

    @property
    def word(self) -> Word:
        """The verdict on the first part."""
        return self.measures[0].change.word

    def to_json(self) -> dict[str, Any]:
        """Return plain values: measures by part and task."""
        parts: dict[str, dict[str, Any]] = {"features": {}, "behaviour": {}}
        for each in self.tasks:
            parts.setdefault(each.part, {})[each.task] = each.to_json()
        verdict = {"verdict": self.word, "part": self.measures[0].part, "identical": self.identical}
        language = {} if self.language is None else {LANGUAGE: self.language.to_json()}
        more = [
            {"task": each.task, "part": each.part, **each.to_json()} for each in self.exploratory
        ]
        return {**verdict, **language, **parts, **({"exploratory": more} if more else {})}


def compare(
    base: Sequence[ItemScores],
    tuned: Sequence[ItemScores],
    margin: float,
    *,
    unchanged: Collection[Part] = (),
    identical: bool = False,
    sampled: Callable[[ItemScores, Paired], Sample] | None = None,
    floor: Callable[[ItemScores], Floor | None] = lambda measure: None,
    alpha: float = ALPHA,
    between: bool = False,
) -> Comparison:
    """Return the changes of all measures that both models have, judged as one family.

    Parameters
    ----------
    margin
        Largest change that does not matter.
    unchanged
        Parts in which both models compute the same, so that nothing is tested.
    identical
        Whether all weights are the same, and texts are read alike.
    sampled
        Returns the change to judge; by default `sample`.
    floor
        Returns the floor of the tuned model's own score.
    alpha
        Error rate of the family.
    between
        Whether `base` is a tuned model, too; then nothing is marked as unable to show forgetting.
    """
    sampled = sampled or sample
    after = {each.what: each for each in tuned}
    shared = [each for each in base if each.what in after]
    pairs = {each.what: Paired.of(each, after[each.what]) for each in shared}

    def judged(primary: bool) -> tuple[MeasureChange, ...]:
        chosen = {each.what: each for each in shared if each.primary == primary}
        samples = {
            what: UNCHANGED if each.part in unchanged else sampled(each, pairs[what])
            for what, each in chosen.items()
        }
        families = [samples] if primary else [{what: each} for what, each in samples.items()]
        changes = {k: v for family in families for k, v in judge(family, margin, alpha).items()}
        p = {
            what: p_above(pairs[what].base, each.chance)
            for what, each in chosen.items()
            if each.chance is not None
        }
        rate = alpha / len(p) if primary and p else alpha
        blind = {
            what
            for what, each in chosen.items()
            if not between and (p.get(what, 0.0) >= rate or has_nothing(each, pairs[what]))
        }
        return tuple(
            MeasureChange(
                *(each, pairs[what], changes[what]),
                tuple(flipped(each, after[what], pairs[what])),
                cannot_show_forgetting=what in blind,
                sample=samples[what],
                floor=floor(each),
            )
            for what, each in chosen.items()
        )

    return Comparison(judged(primary=True), identical, judged(primary=False), alpha)


def flipped(base: ItemScores, tuned: ItemScores, pair: Paired) -> Iterator[Flipped]:
    """Yield the first items that the tuned model lost, then those that it gained.

    None without what both models said to the same items.
    """
    if not base.said or not tuned.said or base.keys != tuned.keys:
        return
    for lost in (True, False):
        right, wrong = (pair.base, pair.tuned) if lost else (pair.tuned, pair.base)
        for i in ((right == 1) & (wrong == 0)).nonzero()[0][:MOST_SHOWN]:
            texts = tuple(base.texts[i].split(SEPARATOR))
            yield Flipped(texts, base.answers[i], base.said[i], tuned.said[i], lost)


def has_nothing(measure: ItemScores, paired: Paired) -> bool:
    """Whether the base model gets no item right, and so has nothing to lose."""
    return measure.part not in FALLING and not paired.base.any()


def sample(measure: ItemScores, paired: Paired) -> Sample:
    """Return the change of paired scores to judge: flips if items are right or wrong."""
    if paired.is_binary:
        return Flips.of(paired.base == 1, paired.tuned == 1).sample()
    largest = None if measure.part == LANGUAGE else paired.largest
    return mean_change(paired.base, paired.tuned, largest)
