"""Gates: what must hold before a tuned model ships, declared in a file and tested on a comparison.

Each requirement says that a quantity, the change of a score or the score itself, is at least a
limit. Both errors have the error rate α of the comparison:

- to pass, every requirement is tested by itself at α (intersection-union test; Berger 1982,
  Technometrics 24). A model that violates one passes only if that one's test errs;
- to fail, each of m requirements is tested at α / m (Bonferroni), so a model that meets all is
  called *fail* with a probability of at most α.

`benchmarks/decisions.py` simulates both.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from clbench.audit.changes import (
    UNCHANGED,
    Bounds,
    Sample,
    clopper_pearson,
    items_needed,
    times_needed,
    widened,
)
from clbench.audit.comparison import CANNOT_SHOW, LANGUAGE, Comparison, MeasureChange, sample
from clbench.audit.scores import PARTS, Floats
from clbench.core.errors import did_you_mean, format_value, printable, quote_key
from clbench.suite.read import raise_errors, read_toml

RULES = ("not_worse_by", "better_by", "at_least")
NOT_SCORES = {
    LANGUAGE: "a loss has no score; use not_worse_by, in nats",
    "calibration": "an error has no score; use not_worse_by, in Brier's score",
}
"""Axes of which lower is better, and what to do."""
Word = Literal["pass", "fail", "not enough evidence"]
CODES: dict[Word, int] = {"fail": 1, "not enough evidence": 3, "pass": 0}
"""Exit codes, the worst decision first."""
TEMPLATE = f"""\
# What must hold before a tuned model ships: clbench audit BASE TUNED --gate FILE
# A table is for an axis, whose tasks' items are pooled, or for a task, which is judged by the
# behaviour if that was measured. Axes: {", ".join(PARTS[:5])},
# {", ".join(PARTS[5:])}.

[features]
not_worse_by = 0.02         # accuracy may drop by 0.02 at most

[language]
not_worse_by = 0.05         # the loss may rise by 0.05 nats at most

# [format]
# at_least = 0.98           # the tuned model's own score

# [mine]
# better_by = 0.05          # accuracy on the task that it was tuned for must rise by 0.05
"""


@dataclass(frozen=True)
class Requirement:
    """A quantity of an axis or a task that must be `limit` or more."""

    name: str
    rule: str
    limit: float

    def measures(self, comparison: Comparison) -> Sequence[Sequence[MeasureChange]]:
        """Return what is tested: the measures of an axis by metric, or the first one of a task."""
        if self.name not in PARTS:
            return [[each] for each in comparison.measures if each.task == self.name][:1]
        found: dict[str, list[MeasureChange]] = {}
        for each in comparison.changes:
            if each.part == self.name:
                found.setdefault(each.measure.metric, []).append(each)
        return [*found.values()]


@dataclass(frozen=True)
class Finding:
    """What is known of a requirement.

    Attributes
    ----------
    word
        ``holds``, ``violated`` or ``open``.
    value, low, high
        The quantity, and its one-sided bounds: `low` at 1 − α, and `high` at 1 − α / m. None if it
        was not measured.
    blind
        Whether no task of it can show forgetting.
    n, more
        Items, and about how many more would decide if the quantity is truly as observed.
    """

    requirement: Requirement
    word: Literal["holds", "violated", "open"] = "open"
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    more: int | None = None
    blind: bool = False

    def __str__(self) -> str:
        name, limit = self.requirement.name, self.requirement.limit
        sign = "" if self.requirement.rule == "at_least" else "+"
        if self.value is None or self.low is None or self.high is None:
            return f"{name} must be {limit:{sign}.3f} or more, but was not measured"
        value, low, high, least = (
            f"{round(each, 3) + 0.0:{sign}.3f}" for each in (self.value, self.low, self.high, limit)
        )
        shown = {
            "holds": f"shown to be {low} or more",
            "violated": f"{limit - self.value:.3f} too low, shown to be {high} or less",
            "open": f"shown to be {low} to {high}",
        }[self.word]
        shown += f"; {CANNOT_SHOW}" if self.blind else ""
        if self.more:
            some = int(float(f"{self.more:.2g}"))
            shown += f"; about {some:,} more item{'s'[: some - 1]} would do"
        return f"{name} {value}, must be {least} or more: {shown}"


@dataclass(frozen=True)
class Decision:
    """Whether a model passes the gate of a file."""

    file: str
    findings: tuple[Finding, ...]

    @property
    def word(self) -> Word:
        """The decision: one violated requirement fails, and an open one leaves it open."""
        words = {finding.word for finding in self.findings}
        if "violated" in words:
            return "fail"
        return "not enough evidence" if "open" in words else "pass"

    def headline(self, model: str) -> str:
        """Return the decision in one line, with its reasons."""
        due = {"fail": "violated", "not enough evidence": "open"}.get(self.word)
        text = "; ".join(str(each) for each in self.findings if each.word == due)
        text = text or f"meets all requirements of {self.file} ({len(self.findings)})"
        return f"{self.word}: {printable(model)}: {text}"

    def to_json(self, model: str) -> dict[str, Any]:
        """Return plain values."""
        head = {"verdict": self.word, "headline": self.headline(model), "file": self.file}
        return {**head, "findings": [asdict(each) for each in self.findings]}


@dataclass(frozen=True)
class Gate:
    """The requirements of a file."""

    path: Path
    requirements: tuple[Requirement, ...]

    def check(self, tasks: Collection[str]) -> None:
        """Raise a SuiteError if a requirement is of neither an axis nor one of the tasks."""
        names = {*PARTS, *tasks}
        unknown = dict.fromkeys(r.name for r in self.requirements if r.name not in names)
        what = "neither an axis nor a task of this audit"
        raise_errors(
            self.path, (f"[{quote_key(n)}]: is {what}.{did_you_mean(n, names)}" for n in unknown)
        )

    def decide(self, comparison: Comparison) -> Decision:
        """Return whether the tuned model of a comparison passes, at the comparison's error rate."""
        tested = [(r, each) for r in self.requirements for each in r.measures(comparison) or [[]]]
        tests = sum(bool(measures) for _, measures in tested)
        found = (find(*each, comparison.alpha, tests) for each in tested)
        return Decision(self.path.name, tuple(found))


def read_gate(path: Path) -> Gate:
    """Return the gate that a file declares.

    Raises a SuiteError if the file is not TOML, has an unknown key or a wrong value, or is empty.
    """
    problems, requirements = [], []
    for name, table in (data := read_toml(path)).items():
        if not isinstance(table, dict) or not table:
            problems.append(f"{quote_key(name)}: must be a table with {' or '.join(RULES)}")
            continue
        for rule, value in table.items():
            where, most = f"[{quote_key(name)}] {quote_key(rule)}", 1 if rule == "at_least" else 100
            if rule not in RULES:
                problems.append(f"{where}: unknown key.{did_you_mean(rule, RULES)}")
            elif name in NOT_SCORES and rule == "at_least":
                problems.append(f"{where}: {NOT_SCORES[name]}")
            elif type(value) not in (int, float) or not 0 <= value <= most:
                got = format_value(value)
                problems.append(f"{where}: must be a number from 0 to {most}, got {got}")
            else:
                limit = -value if rule == "not_worse_by" else value
                requirements.append(Requirement(name, rule, float(limit)))
    if not data:
        problems.append("has no requirement; clbench audit --gate-template prints some")
    raise_errors(path, problems)
    return Gate(path, tuple(requirements))


def find(
    requirement: Requirement, measures: Sequence[MeasureChange], alpha: float, tests: int
) -> Finding:
    """Return what the items of some measures, pooled, say of a requirement.

    Tasks that cannot show forgetting do not show its absence: they are left out of
    ``not_worse_by``, which is open if it has no others. A gain is seen on them, too.
    """
    if not measures:
        return Finding(requirement)
    if is_blind := requirement.rule == "not_worse_by":
        seeing = [
            each
            for each in measures
            if not each.cannot_show_forgetting or each.change.word == "gained"
        ]
        measures, is_blind = seeing or measures, not seeing
    known = own_score(measures) if requirement.rule == "at_least" else pooled(measures)
    n = sum(len(each.paired) for each in measures)
    more: int | None = None
    value, limit, fails = known.difference, requirement.limit, alpha / tests
    low, high = known.interval(1.0 - 2.0 * alpha)[0], known.interval(1.0 - 2.0 * fails)[1]
    word: Literal["holds", "violated", "open"] = "open"
    if low >= limit:
        word = "open" if is_blind else "holds"
    elif high < limit:
        word = "violated"
    elif value != limit:
        side, rate = (0, 2.0 * alpha) if value > limit else (1, 2.0 * fails)

        def settles(times: float) -> bool:
            bound = known.interval(1.0 - rate, times)[side]
            return bound < limit if side else bound >= limit

        if times := times_needed(settles):
            needed = items_needed(known.variance, abs(value - limit), rate, largest=known.largest)
            more = max(needed, math.ceil(times * n)) - n
    return Finding(requirement, word, value, low, high, n, more, is_blind)


def pooled(measures: Sequence[MeasureChange]) -> Sample:
    """Return the mean change over all items of some measures.

    Distances to the bounds of independent changes add up like standard errors (the method of
    variance estimates recovery, Zou & Donner 2008, Statistics in Medicine 27).
    """
    samples = [
        mean_of(each.paired.tuned - each.paired.base)
        if each.is_loss and each.sample is not UNCHANGED
        else each.sample or sample(each.measure, each.paired)
        for each in measures
    ]
    sizes = [len(each.paired) for each in measures]
    weights = [size / sum(sizes) for size in sizes]
    each = list(zip(weights, samples, strict=True))
    middle = sum(w * s.difference for w, s in each)

    def interval(level: float, times: float = 1.0) -> Bounds:
        bounds = [(w, s.difference, s.interval(level, times)) for w, s in each]
        below = math.hypot(*(w * (d - low) for w, d, (low, _) in bounds))
        return middle - below, middle + math.hypot(*(w * (high - d) for w, d, (_, high) in bounds))

    variance, largest = sum(w * s.variance for w, s in each), max(s.largest for _, s in each)
    return Sample(middle, math.nan, interval, variance, largest)


def own_score(measures: Sequence[MeasureChange]) -> Sample:
    """Return the tuned model's mean score over all items of some measures.

    It is uncertain also by the noise of the model's runs, which add up as in `pooled`.
    """
    values = np.concatenate([each.paired.tuned for each in measures])
    noise = [(len(m.paired) / len(values), m.floor) for m in measures if m.floor is not None]
    if not noise:
        return mean_of(values)
    shares = values.min() >= 0.0 and values.max() <= 1.0
    most = (0.0, 1.0) if shares else (-math.inf, math.inf)
    return widened(
        mean_of(values), lambda level: math.hypot(*(w * floor(level) for w, floor in noise)), most
    )


def mean_of(values: Floats) -> Sample:
    """Return the mean of items to judge: by an exact interval if they are all 0 or 1.

    Else by Student's t with Hall's correction for skewness (1992, Journal of the Royal Statistical
    Society B 54): one bound alone would miss the means of skewed losses too often.
    """
    n, mean = len(values), float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        variance = max(mean * (1.0 - mean), 1.0 / n)
        k = int(values.sum())

        def exact(level: float, times: float = 1.0) -> Bounds:
            return clopper_pearson(k * times, n * times, level)

        return Sample(mean, math.nan, exact, variance)
    spread = float(values.std(ddof=1))
    if not spread:
        return Sample(mean, math.nan, lambda level, times=1.0: (mean, mean))
    third = float(((values - mean) ** 3).mean()) / spread**3

    def interval(level: float, times: float = 1.0) -> Bounds:
        root, t = math.sqrt(n * times), float(stdtrit(n * times - 1, (1.0 + level) / 2))
        skew = math.copysign(max(abs(third / root), 1e-6), third)
        low, high = (
            mean - spread / root * 3 / skew * (float(np.cbrt(1 + skew * (q - skew / 6))) - 1)
            for q in (t, -t)
        )
        return low, high

    return Sample(mean, math.nan, interval, spread**2)
