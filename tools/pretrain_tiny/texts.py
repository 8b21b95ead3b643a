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
_MIN_SHARED = 6  # words of a sentence: a shorter one may stand in any two texts
_MIN_DISTINCT = 100  # a string column with fewer values holds codes (a genre), not texts


@dataclass
class Corpus:
    """Segments of text and the pairs of segments that stand beside each other.

    Attributes
    ----------
    segments : list of str
        Distinct texts of at most about ``max_words`` words.
    pairs : list of (int, int)
        Indices of two segments that follow each other, or that share a row of a table.
    sources : dict
        Number of segments that each source added.
    """

    segments: list[str] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    _index: dict[str, int] = field(default_factory=dict, repr=False)

    def add(self, text: str) -> int:
        """Index of ``text``, which is added if it is new."""
        if text not in self._index:
            self._index[text] = len(self.segments)
            self.segments.append(text)
        return self._index[text]

    def pair_array(self) -> npt.NDArray[np.int32]:
        """Distinct pairs of two different segments, shape (pairs, 2)."""
        distinct = dict.fromkeys(pair for pair in self.pairs if pair[0] != pair[1])
        return np.array(list(distinct), dtype=np.int32).reshape(-1, 2)


def clean(line: str) -> str:
    """Undo the marks of tokenised Wikipedia dumps (``@-@``, ``<unk>``) and tidy spaces."""
    line = line.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
    return re.sub(r"\s+", " ", line.replace("<unk>", " ")).strip()


def paragraphs(lines: Iterable[str], min_words: int = 5) -> Iterator[str]:
    """Cleaned paragraphs; headings (``= … =``) and fragments are left out."""
    for line in lines:
        text = clean(line)
        if not text.startswith("=") and len(text.split()) >= min_words:
            yield text


def chunks(paragraph: str, rng: random.Random, max_words: int) -> Iterator[str]:
    """Whole sentences joined up to a length drawn anew for each chunk."""
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


def add_paragraphs(
    corpus: Corpus, name: str, lines: Iterable[str], rng: random.Random, max_words: int
) -> None:
    """Add running text; neighbours within a paragraph become pairs."""
    before = len(corpus.segments)
    for paragraph in paragraphs(lines):
        ids = [corpus.add(chunk) for chunk in chunks(paragraph, rng, max_words)]
        corpus.pairs += list(pairwise(ids))
    corpus.sources[name] = len(corpus.segments) - before


def add_table(corpus: Corpus, path: Path, max_words: int) -> None:
    """Add the text columns of a parquet table; two text columns become pairs."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import pyarrow.types as pt

    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: no Parquet table that can be read: {error}") from None
    columns = [
        table.column(f.name).to_pylist()
        for f in table.schema
        if pt.is_string(f.type) or pt.is_large_string(f.type)
    ]
    columns = [column for column in columns if len(set(column)) >= _MIN_DISTINCT]
    if not columns:
        raise ValueError(
            f"{path}: no column of text ({_MIN_DISTINCT} or more different strings in it)"
        )
    before = len(corpus.segments)
    for row in zip(*columns, strict=True):
        texts = [" ".join(clean(cell or "").split()[:max_words]) for cell in row]
        ids = [corpus.add(text) for text in texts if len(text.split()) >= 2]
        corpus.pairs += list(pairwise(ids))
    corpus.sources["/".join(path.parts[-2:])] = len(corpus.segments) - before


def without_shared(held_out: Sequence[str], trained_on: Sequence[str]) -> list[str]:
    """The held-out segments none of whose longer sentences is in the training text.

    Text cut at other places still counts as shared: sentences of `_MIN_SHARED` words or more
    are compared, not segments.
    """

    def sentences(segment: str) -> set[str]:
        parts = [segment, *_SENTENCE_END.split(segment)]
        return {part for part in parts if len(part.split()) >= _MIN_SHARED}

    seen = {part for segment in trained_on for part in sentences(segment)}
    seen |= set(trained_on)
    return [text for text in held_out if text not in seen and not sentences(text) & seen]


def hub_lines(spec: str) -> Iterator[str]:
    """Texts of a hub corpus given as ``name``, ``name:config`` or ``name:config:column``."""
    from datasets import load_dataset

    name, config, column = ([*spec.split(":"), "", ""])[:3]
    for row in load_dataset(name, config or None, split="train", streaming=True):
        yield from str(row[column or "text"]).splitlines()


def read_corpus(inputs: Iterable[str], *, max_words: int = 90) -> Corpus:
    """Read every input: a text file, a ``.parquet`` table, or ``hub:name[:config[:column]]``.

    Running text is cut at the same places every time, whatever the seed of the training.

    Raises
    ------
    OSError
        An input is neither a file that can be read nor a hub corpus that can be reached.
    ValueError
        A file is no UTF-8 text, or a table has no column of texts.
    """
    corpus = Corpus()
    for number, source in enumerate(inputs):
        rng = random.Random(f"chunks/0/{number}")
        path = Path(source)
        if source.startswith("hub:"):
            add_paragraphs(corpus, source, hub_lines(source[4:]), rng, max_words)
        elif path.suffix == ".parquet":
            add_table(corpus, path, max_words)
        else:
            try:
                lines = path.read_text(encoding="utf-8").split("\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}: no UTF-8 text (byte {error.start})") from None
            add_paragraphs(corpus, path.name, lines, rng, max_words)
    return corpus
