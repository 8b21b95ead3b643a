"""Simulate what audits say beside their verdicts: chance flips, calibration, power, looks, gates.

    python benchmarks/decisions.py [--draws N] [--only chance] [--out results/verdicts]

It prints a table each:

    chance  coverage of the intervals of flips beyond chance, and the share of tasks that are
            taken to be above chance though the base model guesses
    calibration  coverage of the intervals of a difference in calibration error, of one test and
            of one of 17, between models that are honest, too hesitant or too sure
    power   share of audits that show a loss, with the rows that `--detect` takes for it
    looks   share of audits with a false word over all looks of `--until-settled`, nothing having
            changed or every change being just beyond the margin, and the mean number of looks
    gate    share of models that violate a requirement and pass, that meet all and fail, and of
            right decisions; flips, scores that are not right or wrong, and losses with three kinds
            of skewed noise (`LOSSES`). Every task can show forgetting.

Models violate or meet requirements as narrowly as can be: at their limits, which is worst.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
from audit import LOSSES

from clbench.audit.ability import signed_gaps
from clbench.audit.chance import beyond_chance, p_above
from clbench.audit.changes import Flips, mean_change
from clbench.audit.comparison import Comparison, compare
from clbench.audit.gate import Gate, Requirement
from clbench.audit.planning import looks, rows_needed
from clbench.audit.scores import ItemScores, Paired
from clbench.audit.settings import MARGIN
from clbench.results.statistics import ALPHA, spend

EVIDENCE = 1.5
"""How much more evidence there is for the right answer, in standard deviations of its noise."""
Random = np.random.Generator
Row = dict[str, object]


def answers(
    n: int, known: tuple[float, float], together: float, choices: int, rng: Random
) -> Paired:
    """Return hits of two models that know shares of the items, and guess the rest.

    `together` is 0 if they know independently, and 1 if one knows all that the other does.
    """
    common = rng.random(n)
    draws = [np.where(rng.random(n) < together, common, rng.random(n)) for _ in known]
    hits = [
        (draw < share) | (rng.random(n) < 1.0 / choices)
        for draw, share in zip(draws, known, strict=True)
    ]
    return Paired((), *(each.astype(np.float64) for each in hits))


def true_beyond(known: tuple[float, float], together: float, choices: int, rng: Random) -> float:
    """Return the share of lost items beyond chance in a population, by many draws."""
    pair = answers(4_000_000, known, together, choices, rng)
    lost = float((pair.base * (1.0 - pair.tuned)).mean())
    wrong = (1.0 - float(pair.base.mean())) * (1.0 - float(pair.tuned.mean()))
    return max(0.0, lost - wrong / (choices - 1))


def chance(draws: int) -> Iterator[Row]:
    """Yield coverage and width of the intervals beyond chance, and false claims to be above it."""
    rng = np.random.default_rng(0)
    for choices in (2, 4, 10):
        for known in ((0.0, 0.0), (0.3, 0.3), (0.5, 0.45), (0.9, 0.85), (0.98, 0.98), (0.95, 0.6)):
            for together in (0.0, 0.8):
                truth = true_beyond(known, together, choices, rng)
                for n in (50, 200, 1000):
                    covered, width, above = 0, 0.0, 0
                    for _ in range(draws):
                        pair = answers(n, known, together, choices, rng)
                        lost, _ = beyond_chance(pair, choices)
                        covered += lost.low <= truth <= lost.high
                        width += lost.high - lost.low
                        above += p_above(pair.base, 1.0 / choices) < ALPHA
                    yield {
                        "choices": choices,
                        "base_knows": known[0],
                        "tuned_knows": known[1],
                        "together": together,
                        "rows": n,
                        "true": f"{truth:.4f}",
                        "coverage": covered / draws,
                        "width": f"{width / draws:.4f}",
                        "above_chance": above / draws,
                    }


def ranked(n: int, sharpness: tuple[float, float], rng: Random) -> list[np.ndarray]:
    """Return the signed gaps of two models that choose among four answers.

    Both see evidence for each answer with normal noise, most of it the same; that of the right one
    is higher by `EVIDENCE`. Honest confidence, of sharpness 1, is the posterior.
    """
    right = np.arange(4) == rng.integers(4, size=(n, 1))
    common = rng.standard_normal((n, 4))
    gaps = []
    for each in sharpness:
        seen = 0.8 * common + 0.6 * rng.standard_normal((n, 4)) + EVIDENCE * right
        shares = np.exp(each * EVIDENCE * seen)
        shares /= shares.sum(1, keepdims=True)
        best = shares.argmax(1)
        gaps.append(signed_gaps(shares.max(1), right[np.arange(n), best]))
    return gaps


def calibration(draws: int) -> Iterator[Row]:
    """Yield coverage of the intervals of a difference in calibration error."""
    rng = np.random.default_rng(0)
    kinds = {"honest": 1.0, "flattened": 0.5, "sharpened": 2.0}
    for one, other in combinations_with_replacement(kinds, 2):
        sharpness = kinds[one], kinds[other]
        population = ranked(1_000_000, sharpness, rng)
        truth = float(population[1].mean() - population[0].mean())
        for n in (300, 1000):
            covered = np.zeros(2)
            for _ in range(draws):
                change = mean_change(*ranked(n, sharpness, rng))
                for i, tests in enumerate((1, 17)):
                    low, high = change.interval(1.0 - ALPHA / tests)
                    covered[i] += low <= truth <= high
            first, family = covered / draws
            yield {
                "one": one,
                "other": other,
                "items": n,
                "true": f"{truth:.4f}",
                "coverage": first,
                "coverage_of_17": family,
            }


def power(draws: int) -> Iterator[Row]:
    """Yield the share of audits that show the loss for which their rows were chosen."""
    rng = np.random.default_rng(0)
    for tests in (1, 5, 10):
        for flips in (0.05, 0.2, 0.5):
            for loss in (0.02, 0.05, 0.1):
                if loss > flips:
                    continue
                rows, level = rows_needed(loss, tests, flips), 1.0 - ALPHA / tests
                shares = [(flips + loss) / 2, (flips - loss) / 2, 1.0 - flips]
                shown = sum(
                    Flips(int(lost), int(gained), rows).interval(level)[1] < 0
                    for lost, gained, _ in rng.multinomial(rows, shares, size=draws)
                )
                yield {
                    "tests": tests,
                    "flips": flips,
                    "loss": loss,
                    "rows": rows,
                    "shown": shown / draws,
                }


def measured(task: str, part: str, base: np.ndarray, tuned: np.ndarray) -> list[ItemScores]:
    """Return the scores of two models on the same items."""
    keys = tuple(map(str, range(len(base))))
    scores = (each.astype(np.float64) for each in (base, tuned))
    return [ItemScores(task, part, each, keys) for each in scores]  # type: ignore[arg-type]


def flipped(n: int, change: float, flips: float, rng: Random) -> tuple[np.ndarray, np.ndarray]:
    """Return hits of two models, of which that share of items flips, with a true change."""
    kind = rng.random(n)
    lost, gained = kind < (flips - change) / 2, kind > 1.0 - (flips + change) / 2
    right = rng.random(n) < 0.6
    return (right & ~gained) | lost, (right & ~lost) | gained


def graded(n: int, change: float, rng: Random) -> tuple[np.ndarray, np.ndarray]:
    """Return scores from 0 to 1 of two models, with a true change."""
    base = rng.beta(4, 2, n)
    return base, base + change + 0.15 * (rng.beta(1, 3, n) - 0.25)


def settled(draws: int) -> Iterator[Row]:
    """Yield the errors over all looks, and after how many looks audits end."""
    rng = np.random.default_rng(0)
    for tasks in (1, 5):
        for rows in (200, 500):
            for flips in (0.05, 0.2):
                for change in (0.0, -MARGIN - 1e-4):
                    plan = looks(rows, rows * 4)
                    false, numbers = 0, 0
                    for _ in range(draws):
                        hits = [flipped(plan[-1], change, flips, rng) for _ in range(tasks)]
                        for count, alpha in zip(plan, spend(plan), strict=True):
                            numbers += 1
                            pairs = [
                                measured(str(i), "features", b[:count], t[:count])
                                for i, (b, t) in enumerate(hits)
                            ]
                            comparison = compare(*zip(*pairs, strict=True), MARGIN, alpha=alpha)
                            if comparison.is_settled:
                                break
                        words = {each.change.word for each in comparison.changes}
                        false += not words.isdisjoint(
                            {"gained", "kept"} if change else {"gained", "forgot"}
                        )
                    yield {
                        "tasks": tasks,
                        "rows": rows,
                        "flips": flips,
                        "change": change,
                        "false": false / draws,
                        "looks": numbers / draws,
                    }


GATE = Gate(
    Path("gate.toml"),
    (
        Requirement("knowledge", "not_worse_by", -0.02),
        Requirement("mine", "better_by", 0.05),
        Requirement("format", "at_least", 0.95),
        Requirement("instructions", "not_worse_by", -0.05),
        Requirement("language", "not_worse_by", -0.05),
    ),
)
"""Two tasks of one axis; a task; a model's own level; graded scores; and a loss in nats."""
WORDS = ("pass", "fail", "not enough evidence")


def gated(excess: dict[str, float], rows: int, rng: Random, losses: str) -> Comparison:
    """Return a comparison in which each quantity is its limit plus an excess."""
    change = {r.name: r.limit + excess[r.name] for r in GATE.requirements}
    format_share = min(1.0, change["format"])
    level = (rng.random(rows) < 0.9, rng.random(rows) < format_share)
    noise = LOSSES[losses](rng)
    pairs = [
        measured("one", "knowledge", *flipped(rows, change["knowledge"] + 0.02, 0.15, rng)),
        measured("two", "knowledge", *flipped(rows, change["knowledge"] - 0.02, 0.15, rng)),
        measured("mine", "behaviour", *flipped(rows, change["mine"], 0.25, rng)),
        measured("json", "format", *level),
        measured("graded", "instructions", *graded(rows, change["instructions"], rng)),
        measured("language", "language", np.zeros(300), noise + change["language"]),
    ]
    return compare(*zip(*pairs, strict=True), MARGIN)


def gate(draws: int) -> Iterator[Row]:
    """Yield the shares of decisions for models that violate or meet the requirements."""
    names = [requirement.name for requirement in GATE.requirements]
    far = {"knowledge": 0.05, "mine": 0.1, "format": 0.04, "instructions": 0.05, "language": 0.05}
    cases = {f"{name} just violated": {**far, name: -1e-9} for name in names}
    cases["all just met"] = dict.fromkeys(names, 0.0)
    cases["all met by far"] = far
    cases["knowledge violated by 0.05"] = {**far, "knowledge": -0.05}
    of_losses = {name: cases[name] for name in ("language just violated", *list(cases)[-3:-1])}
    for i, losses in enumerate(LOSSES):
        rng = np.random.default_rng(i)
        for rows in (200, 1000):
            for case, excess in (of_losses if i else cases).items():
                words = [GATE.decide(gated(excess, rows, rng, losses)).word for _ in range(draws)]
                shares = {word: words.count(word) / draws for word in WORDS}
                yield {"losses": losses, "rows": rows, "case": case, **shares}


TABLES: dict[str, Callable[[int], Iterator[Row]]] = {
    "chance": chance,
    "calibration": calibration,
    "power": power,
    "looks": settled,
    "gate": gate,
}


def main() -> None:
    """Print the tables, and write them into a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    parser.add_argument("--out", type=Path, help="write a table each into this folder")
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else TABLES:
        lines = []
        for values in TABLES[name](arguments.draws):
            row = {"draws": arguments.draws, **values}
            lines = lines or [",".join(row)]
            lines.append(",".join(map(str, row.values())))
            print(lines[-1] if len(lines) > 2 else "\n".join(lines), flush=True)
        if arguments.out:
            (arguments.out / f"audit-{name}.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
