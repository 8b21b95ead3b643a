"""Generate splits from the grammar: distinct, disjoint, balanced, equal on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from clbench.tasks.synthetic import SIZES, SPECS, TEXTS
from tools.synthetic.events import FORMS, draw_event, say, wrap
from tools.synthetic.pairs import PAIR
from tools.synthetic.single import SINGLE

Example = tuple[str, str | None, int | None]

SEED = 0
PATIENCE = 10_000
"""Number of draws without a new text after which the grammar counts as exhausted."""
SCHEMA = pa.schema(
    {
        "task": pa.string(),
        "split": pa.string(),
        "first": pa.string(),
        "second": pa.string(),
        "label": pa.int8(),
    }
)


def write_file(path: Path) -> None:
    """Write every split of `SIZES`, each as one row group.

    The same version of pyarrow writes the same bytes every time.
    """
    options = {"compression": "zstd", "compression_level": 22, "data_page_size": 1 << 30}
    with pq.ParquetWriter(
        path, SCHEMA, use_dictionary=["task", "split", "label"], **options
    ) as writer:
        for (task, split), size in SIZES.items():
            rows = generate_texts(split, size) if task == TEXTS else generate(task, split, size)
            first, second, labels = zip(*rows, strict=True)
            columns = [[task] * size, [split] * size, first, second, labels]
            writer.write_table(pa.table(columns, schema=SCHEMA))


def generate(name: str, split: str, size: int) -> list[Example]:
    """Return the rows of one split of a task as (text, second text or None, label).

    A shorter split is the beginning of a longer one. A digest of a text decides which split
    may hold it, so no text, first or second, is in both. Every block of as many rows as there
    are classes, counted from the start, holds each class once.

    Parameters
    ----------
    name
        A key of `SPECS`.
    split
        ``train`` or ``validation``.
    size
        Number of rows.

    Raises
    ------
    ValueError
        If the grammar has fewer than `size` texts.
    """
    rng = Random(f"{name}/{split}/{SEED}")
    draw = {**SINGLE, **PAIR}[name]
    seen: set[tuple[str, str | None]] = set()
    rows: list[Example] = []
    for label in _labels(Random(f"{name}/{split}/{SEED}/labels"), len(SPECS[name].labels), size):
        for _ in range(PATIENCE):
            texts = draw(rng, label)
            if texts not in seen and all(
                is_held_out(text) is (split == "validation") for text in texts if text
            ):
                break
        else:
            raise ValueError(f"The grammar of {name!r} has fewer than {size} texts.")
        seen.add(texts)
        rows.append((*texts, label))
    return rows


def generate_texts(split: str, size: int) -> list[Example]:
    """Return distinct texts of the same grammar, without labels, that the split may hold.

    Raises
    ------
    ValueError
        If the grammar has fewer than `size` texts.
    """
    held_out = split == "validation"
    rng = Random(f"unlabelled/{SEED}/held-out" if held_out else f"unlabelled/{SEED}")
    texts: dict[str, None] = {}
    misses = 0
    while len(texts) < size and misses < PATIENCE:
        text = _any_text(rng)
        if text in texts or is_held_out(text) != held_out:
            misses += 1
            continue
        texts[text] = None
        misses = 0
    if len(texts) < size:
        raise ValueError(f"The grammar has fewer than {size} texts.")
    return [(text, None, None) for text in texts]


def is_held_out(text: str) -> bool:
    """Return whether the text belongs to validation splits, as about one text in four does."""
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] < 64


def _any_text(rng: Random) -> str:
    if rng.random() < 0.5:
        return SINGLE["sentiment"](rng, rng.randrange(2))[0]
    event = draw_event(rng)
    return wrap(rng, event.topic, say(event, rng.choice(FORMS)))


def _labels(rng: Random, classes: int, size: int) -> Iterator[int]:
    block: list[int] = []
    for _ in range(size):
        if not block:
            block = rng.sample(range(classes), classes)
        yield block.pop()
