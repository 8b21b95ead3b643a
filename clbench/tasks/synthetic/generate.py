"""From grammar to splits: distinct, disjoint, balanced, and the same for a seed everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from clbench.errors import did_you_mean
from clbench.tasks.synthetic.events import FORMS, draw_event, say, wrap
from clbench.tasks.synthetic.pairs import PAIR
from clbench.tasks.synthetic.single import SINGLE

Example = tuple[str, str | None, int]

_PATIENCE = 10_000
"""Draws without a new text after which the grammar is taken to be exhausted."""


@dataclass(frozen=True)
class SyntheticSpec:
    """What a synthetic task is.

    Attributes
    ----------
    name
        As written in suites.
    labels
        Names of the classes; a row's label is an index into them.
    pair
        Whether a row has two texts.
    description
        One line for listings.
    """

    name: str
    labels: tuple[str, ...]
    pair: bool
    description: str


SPECS: dict[str, SyntheticSpec] = {
    spec.name: spec
    for spec in (
        SyntheticSpec(
            "sentiment", ("negative", "positive"), False, "praise or blame in a review (like SST-2)"
        ),
        SyntheticSpec(
            "acceptability", ("faulty", "sound"), False, "is the grammar sound (like CoLA)"
        ),
        SyntheticSpec(
            "paraphrase", ("different", "same"), True, "do both tell the same event (like MRPC)"
        ),
        SyntheticSpec("qa", ("no", "yes"), True, "does the text answer the question (like QNLI)"),
        SyntheticSpec("entailment", ("entailed", "not"), True, "does the second follow (like RTE)"),
        SyntheticSpec(
            "entailment3",
            ("entailed", "neutral", "contradicted"),
            True,
            "does the second follow, is it open, or false (like MNLI)",
        ),
    )
}


def generate(
    name: str,
    *,
    train: int = 2000,
    validation: int = 500,
    seed: int = 0,
    label_noise: float = 0.0,
) -> dict[str, list[Example]]:
    """Generate a task.

    The rows depend on the name, the split and the seed alone: a shorter split is the
    beginning of a longer one, and the one split does not depend on the other's size. Which
    split a text may enter is decided by a digest of the text itself, so no text, first or
    second, is in both splits, for any two seeds. Every run of as many rows as there are
    classes, counted from the start, holds each class once.

    Parameters
    ----------
    name
        One of `SPECS`.
    train, validation
        Rows of each split.
    seed
        Of the texts, and of the noise.
    label_noise
        Chance of each training row that its label is changed to another class, 0 to 1. The
        texts and the validation rows stay as they are.

    Returns
    -------
    dict
        ``train`` and ``validation``: rows ``(text, second text or None, label)``.

    Raises
    ------
    ValueError
        If there is no such task, a size is negative, the noise is no share, or the grammar has
        not that many texts.
    """
    name = str(name).removeprefix("synthetic/")
    if name not in SPECS:
        raise ValueError(f"unknown synthetic task {name!r}.{did_you_mean(name, SPECS)}")
    spec = SPECS[name]
    for key, value in (("train", train), ("validation", validation), ("seed", seed)):
        _check_whole(value, f"synthetic task {name!r}: {key}")
    if not isinstance(label_noise, (int, float)) or not 0.0 <= label_noise <= 1.0:
        raise ValueError(f"synthetic task {name!r}: label_noise {label_noise!r} is not in 0 to 1.")
    rows = {
        split: _split(spec, split, size, seed)
        for split, size in (("train", train), ("validation", validation))
    }
    rows["train"] = _with_noise(spec, rows["train"], label_noise, seed)
    return rows


def _check_whole(value: int, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{what} must be a whole number of 0 or more, not {value!r}.")


def unlabelled(n: int, seed: int = 0, *, held_out: bool = False) -> list[str]:
    """`n` distinct texts of the same grammar, none of which can be in a validation split.

    With `held_out` all of them could be, and none in a training split.

    Raises
    ------
    ValueError
        If a number is negative or not whole, or the grammar has not that many texts.
    """
    _check_whole(n, "unlabelled: n")
    _check_whole(seed, "unlabelled: seed")
    rng = Random(f"unlabelled/{seed}/held-out" if held_out else f"unlabelled/{seed}")
    texts: dict[str, None] = {}
    misses = 0
    while len(texts) < n and misses < _PATIENCE:
        text = _any_text(rng)
        if text in texts or _held_out(text) != held_out:
            misses += 1
            continue
        texts[text] = None
        misses = 0
    if len(texts) < n:
        raise ValueError(f"the grammar of the synthetic tasks has fewer than {n} texts.")
    return list(texts)


def _any_text(rng: Random) -> str:
    if rng.random() < 0.5:
        return SINGLE["sentiment"](rng, rng.randrange(2))[0]
    event = draw_event(rng)
    return wrap(rng, event.topic, say(event, rng.choice(FORMS)))


def _held_out(text: str) -> bool:
    """Whether the text belongs to validation splits: about one text in four."""
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] < 64


def _split(spec: SyntheticSpec, split: str, size: int, seed: int) -> list[Example]:
    rng = Random(f"{spec.name}/{split}/{seed}")
    draw = {**SINGLE, **PAIR}[spec.name]
    seen: set[tuple[str, str | None]] = set()
    rows: list[Example] = []
    for label in _labels(Random(f"{spec.name}/{split}/{seed}/labels"), len(spec.labels), size):
        for _ in range(_PATIENCE):
            texts = draw(rng, label)
            if texts not in seen and all(
                _held_out(text) is (split == "validation") for text in texts if text
            ):
                break
        else:
            raise ValueError(
                f"synthetic task {spec.name!r}: its grammar has fewer than {size} texts. "
                f"Ask for fewer rows of {split}."
            )
        seen.add(texts)
        rows.append((*texts, label))
    return rows


def _labels(rng: Random, classes: int, size: int) -> Iterator[int]:
    block: list[int] = []
    for _ in range(size):
        if not block:
            block = rng.sample(range(classes), classes)
        yield block.pop()


def _with_noise(spec: SyntheticSpec, rows: list[Example], noise: float, seed: int) -> list[Example]:
    rng = Random(f"{spec.name}/noise/{seed}")
    classes = len(spec.labels)
    noisy: list[Example] = []
    for first, second, label in rows:
        chance, step = rng.random(), rng.randrange(1, classes)
        noisy.append((first, second, (label + step) % classes if chance < noise else label))
    return noisy
