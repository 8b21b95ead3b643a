"""The generator writes the packaged file, and its rows have the documented properties."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clbench.tasks.synthetic import FILE, SIZES, SPECS, TEXTS, generate, unlabelled
from tools.synthetic import generate as generator
from tools.synthetic.lexicon import TOPICS
from tools.synthetic.single import SINGLE

NAMES = sorted(SPECS)


def words(row: tuple[str, str | None, int]) -> int:
    return len(f"{row[0]} {row[1] or ''}".split())


@pytest.mark.parametrize("name", NAMES)
def test_the_file_begins_with_the_rows_that_are_generated(name: str) -> None:
    packaged = generate(name, train=60, validation=30)
    for split, rows in packaged.items():
        assert generator.generate(name, split, len(rows)) == rows


def test_the_file_begins_with_the_texts_that_are_generated() -> None:
    for split, held_out in (("train", False), ("validation", True)):
        texts = [row[0] for row in generator.generate_texts(split, 100)]
        assert texts == unlabelled(100, held_out=held_out)


@pytest.mark.slow
def test_the_generator_writes_the_packaged_file(tmp_path: Path) -> None:
    path = tmp_path / "again.parquet"
    generator.write_file(path)
    written, packaged = pq.ParquetFile(path), pq.ParquetFile(FILE)
    assert written.read().equals(packaged.read())
    if written.metadata.created_by == packaged.metadata.created_by:  # the same pyarrow
        assert path.read_bytes() == FILE.read_bytes()
    assert FILE.stat().st_size < 1_000_000
    assert written.schema_arrow == generator.SCHEMA == pa.schema(packaged.schema_arrow)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_unique_and_splits_share_no_text(name: str) -> None:
    data = generate(name, train=SIZES[name, "train"], validation=SIZES[name, "validation"])
    rows = [row[:2] for row in (*data["train"], *data["validation"])]
    assert len(set(rows)) == len(rows)
    train, held_out = ({text for row in data[split] for text in row[:2] if text} for split in data)
    assert not train & held_out
    assert not held_out & set(unlabelled(SIZES[TEXTS, "train"]))
    assert not train & set(unlabelled(SIZES[TEXTS, "validation"], held_out=True))


@pytest.mark.parametrize("name", NAMES)
def test_lengths_vary_and_do_not_predict_the_label(name: str) -> None:
    rows = generate(name, train=3000, validation=0)["train"]
    lengths = np.array([words(row) for row in rows])
    labels = np.array([label for *_, label in rows])
    low, high = np.percentile(lengths, [10, 90])
    assert high >= 1.9 * low
    for label in np.unique(labels):
        gap = abs(lengths[labels == label].mean() - lengths[labels != label].mean())
        assert gap < 0.35 * lengths.std()


@pytest.mark.parametrize("name", NAMES)
def test_both_topics_occur_in_every_class(name: str) -> None:
    sea = TOPICS["harbor"]
    sea_words = {*sea.people, *sea.things, *sea.aspects, *sea.places}
    for label in range(len(SPECS[name].labels)):
        texts = [row[0] for row in generate(name)["train"] if row[2] == label]
        share = np.mean([any(f" {word}" in text.lower() for word in sea_words) for text in texts])
        assert 0.3 < share < 0.7


def test_the_vocabulary_is_varied() -> None:
    texts = " ".join(unlabelled(3000)).lower().replace(".", " ").replace(",", " ").split()
    assert len(set(texts)) > 350


@pytest.mark.parametrize("name", ["acceptability", "entailment", "entailment3"])
def test_no_single_word_gives_the_label_away(name: str) -> None:
    labels: dict[str, Counter[int]] = {}
    for first, second, label in generate(name, train=6000, validation=0)["train"]:
        for word in set(re.findall(r"\w+|[^\w\s]", (second or first).lower())):
            labels.setdefault(word, Counter())[label] += 1
    common = {word: count for word, count in labels.items() if count.total() >= 150}
    assert len(common) > 30
    share = {word: max(count.values()) / count.total() for word, count in common.items()}
    assert max(share.values()) < 0.92, max(share, key=lambda word: share[word])


def test_an_exhausted_grammar_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINGLE, "sentiment", lambda rng, label: ("One text.", None))
    with pytest.raises(ValueError, match="has fewer than 10 texts"):
        generator.generate("sentiment", "train", 10)
