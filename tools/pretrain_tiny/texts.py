"""Read English text from files, tables and the hub, and cut it into segments and pairs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(]?[A-Z0-9])")
_MIN_SHARED = 6  # words; a shorter sentence may occur in any two texts by chance
_MIN_DISTINCT = 100  # a string column with fewer values holds codes (a genre), not texts


@dataclass
class Corpus:
    """Distinct segments of text, and pairs of neighbours among them."""

    segments: list[str] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Indices of two segments that follow each other or share a row of a table."""
    sources: dict[str, int] = field(default_factory=dict)
    """Number of segments that each source added."""
    _index: dict[str, int] = field(default_factory=dict, repr=False)

    def add(self, name: str, groups: Iterable[Sequence[str]]) -> None:
        """Add the texts of a source; neighbours in a group become pairs."""
        before = len(self.segments)
        for group in groups:
            for text in group:
                if self._index.setdefault(text, len(self.segments)) == len(self.segments):
                    self.segments.append(text)
            self.pairs += pairwise(self._index[text] for text in group)
        self.sources[name] = len(self.segments) - before

    def pair_array(self) -> npt.NDArray[np.int32]:
        """Return the distinct pairs of different segments, shape (pairs, 2)."""
        distinct = dict.fromkeys(pair for pair in self.pairs if pair[0] != pair[1])
        return np.array(list(distinct), dtype=np.int32).reshape(-1, 2)


def clean(line: str) -> str:
    """Remove the marks of tokenised Wikipedia dumps (``@-@``, ``<unk>``) and extra spaces."""
    line = line.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
    return re.sub(r"\s+", " ", line.replace("<unk>", " ")).strip()


def chunks(paragraph: str, rng: random.Random, max_words: int) -> Iterator[str]:
    """Yield whole sentences, joined up to a length that is drawn for each chunk."""
    current: list[str] = []
    target = rng.randint(5, max_words)
    for sentence in _SENTENCE_END.split(paragraph):
        words = sentence.split()
        if current and len(current) + len(words) > target:
            yield " ".join(current[:max_words])
            current, target = [], rng.randint(5, max_words)
        current += words
    if current:
        yield " ".join(current[:max_words])


def paragraphs(lines: Iterable[str], rng: random.Random, max_words: int) -> Iterator[list[str]]:
    """Yield the chunks of each cleaned paragraph; skip headings (``= … =``) and fragments."""
    for line in lines:
        text = clean(line)
        if not text.startswith("=") and len(text.split()) >= 5:
            yield list(chunks(text, rng, max_words))


def table_rows(path: Path, max_words: int) -> Iterator[list[str]]:
    """Yield the texts of each row of a Parquet table."""
    import pyarrow.parquet as pq
    import pyarrow.types as pt

    table = pq.read_table(path)
    columns = [
        table.column(f.name).to_pylist()
        for f in table.schema
        if pt.is_string(f.type) or pt.is_large_string(f.type)
    ]
    columns = [column for column in columns if len(set(column)) >= _MIN_DISTINCT]
    if not columns:
        raise ValueError(f"no column of text ({_MIN_DISTINCT} or more different strings)")
    for row in zip(*columns, strict=True):
        texts = [" ".join(clean(cell or "").split()[:max_words]) for cell in row]
        yield [text for text in texts if len(text.split()) >= 2]


def hub_lines(spec: str) -> Iterator[str]:
    """Yield the texts of a hub corpus, given as ``name[:config[:column]]``."""
    from datasets import load_dataset

    name, config, column = ([*spec.split(":"), "", ""])[:3]
    for row in load_dataset(name, config or None, split="train", streaming=True):
        yield from str(row[column or "text"]).splitlines()


def without_shared(held_out: Sequence[str], trained_on: Sequence[str]) -> list[str]:
    """Return the held-out segments that share no longer sentence with the training text.

    Sentences of `_MIN_SHARED` words or more are compared, not segments, so that text cut at
    other places still counts as shared.
    """

    def sentences(segment: str) -> set[str]:
        parts = [segment, *_SENTENCE_END.split(segment)]
        return {part for part in parts if len(part.split()) >= _MIN_SHARED}

    training = {part for segment in trained_on for part in sentences(segment)} | set(trained_on)
    return [text for text in held_out if text not in training and not sentences(text) & training]


def read_corpus(inputs: Iterable[str], *, max_words: int = 90) -> Corpus:
    """Read every input: a text file, a ``.parquet`` table, or ``hub:name[:config[:column]]``.

    Running text is cut at the same places every time, whatever the training seed.

    Raises
    ------
    OSError, ValueError
        If an input cannot be read or has no text.
    """
    corpus = Corpus()
    for number, source in enumerate(inputs):
        rng = random.Random(f"chunks/0/{number}")
        path = Path(source)
        try:
            if source.startswith("hub:"):
                corpus.add(source, paragraphs(hub_lines(source[4:]), rng, max_words))
            elif path.suffix == ".parquet":
                corpus.add("/".join(path.parts[-3:]), table_rows(path, max_words))
            else:
                lines = path.read_text(encoding="utf-8").split("\n")
                corpus.add(path.name, paragraphs(lines, rng, max_words))
        except ValueError as error:
            raise ValueError(f"{source} cannot be read: {error}") from error
    return corpus
