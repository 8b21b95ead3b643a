"""Running text for the loss of a language model: a file, a corpus of the hub, or built in.

About a tenth of each corpus is held out: methods never see it, and what a model keeps of its
pretraining is scored on it.

Imports neither torch nor transformers, so that a finished run can be told from an
unfinished one at once.
"""

from __future__ import annotations

import hashlib
from codecs import getincrementaldecoder
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from clbench.errors import DataError
from clbench.seeds import numpy_stream
from clbench.tasks.files import SUFFIXES
from clbench.tasks.synthetic import unlabelled
from clbench.tasks.tables import whole_parquet

BUILT_IN = "built-in"
WIKI40B = "wiki40b/en"
HUB_NAME, HUB_CONFIG, HUB_REVISION = "google/wiki40b", "en", "main"
"""Wikipedia of 2019, cleaned (Guo et al. 2020); its repository has no later version."""
FEWEST_WORDS = 5
"""Shorter lines of a file are headings and the like."""
HELD_OUT = 26
"""Of 256 values of a line's digest those that hold it out of a file: about a tenth."""
CHUNK = 1 << 20
"""Bytes read at once."""


def resolve_corpus(corpus: str, base: Path, key: str) -> str:
    """`corpus`, with the path of a file made absolute.

    Parameters
    ----------
    corpus
        ``built-in``, ``wiki40b/en`` or the path of a text file or Parquet table.
    base
        Folder that a relative path starts from.
    key
        Where it was written, for messages: ``--corpus`` or ``[protocol] corpus``.

    Raises
    ------
    DataError
        If there is no such file.
    """
    if corpus in (BUILT_IN, WIKI40B):
        return corpus
    path = base.joinpath(Path(corpus).expanduser()).resolve()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "there is no such file"
        raise DataError(
            f"{key} {corpus!r}: {what} ({path}). Give a text file with one text a line, a Parquet "
            f"table, {WIKI40B} for the hub's, or {BUILT_IN}."
        )
    return str(path)


def corpus_identity(corpus: str) -> dict[str, Any]:
    """What decides the texts, as plain JSON values; the place of a file is no part of it.

    Parameters
    ----------
    corpus
        As `resolve_corpus` returns it.

    Raises
    ------
    DataError
        If a file cannot be read or holds no text.
    """
    if corpus == BUILT_IN:
        sample = "\n".join(unlabelled(100))
        return {"built-in": hashlib.blake2b(sample.encode(), digest_size=16).hexdigest()}
    if corpus == WIKI40B:
        return {"hub": HUB_NAME, "config": HUB_CONFIG, "revision": HUB_REVISION}
    path = Path(corpus)
    digest = _digest(path)
    next(_lines(path), None)
    return {"file": digest, "held-out": f"{HELD_OUT}/256"}


def corpus_name(corpus: str) -> str:
    """What to call a corpus, as `resolve_corpus` returns it, before a reader: no folders."""
    return corpus if corpus in (BUILT_IN, WIKI40B) else Path(corpus).name


def read_corpus(corpus: str, count: int, seed: int = 0, *, held_out: bool = False) -> list[str]:
    """At most `count` texts, always the same ones for a seed.

    Parameters
    ----------
    corpus
        As `resolve_corpus` returns it. Of a file each line of at least five words is a
        text, of a Parquet table each such line in its column ``text``, or else in all its columns
        of text; of wiki40b the first paragraph of each article.
    count
        Number of texts.
    seed
        Which lines of a file are drawn; the other corpora are taken from their start.
    held_out
        From the part that is held out, which shares no text with the other: of a file about a
        tenth of its lines, of wiki40b its validation split, of the built-in texts those that
        the tasks hold out for validation too.

    Raises
    ------
    DataError
        If the corpus cannot be read, fetched, or holds no text.
    """
    if corpus == BUILT_IN:
        return unlabelled(count, seed, held_out=held_out)
    if corpus == WIKI40B:
        return _from_hub(count, "validation" if held_out else "train")
    path = Path(corpus)
    texts = [text for text in _lines(path) if _is_held_out(text) == held_out]
    if not texts:
        part = "its held-out tenth" if held_out else "what is not held out of it"
        raise DataError(f"corpus {path}: {part} is empty. Give a file with more lines.")
    if len(texts) <= count:
        return texts
    chosen = numpy_stream("corpus", seed).permutation(len(texts))[:count]
    return [texts[i] for i in sorted(chosen)]


def _is_held_out(text: str) -> bool:
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] < HELD_OUT


def _digest(path: Path) -> str:
    """Of a file's content, which is read whole, so that no later line of a text is broken."""
    digest, decoder = hashlib.blake2b(digest_size=16), getincrementaldecoder("utf-8")()
    before = 0  # bytes that are decoded
    try:
        with path.open("rb") as file:
            for chunk in chain(iter(partial(file.read, CHUNK), b""), [b""]):
                digest.update(chunk)
                if not _is_table(path):
                    held = len(decoder.getstate()[0])
                    decoder.decode(chunk, final=not chunk)
                    before += held + len(chunk) - len(decoder.getstate()[0])
    except OSError as fault:
        raise DataError(f"corpus {path}: cannot be read: {fault.strerror}.") from fault
    except UnicodeDecodeError as fault:
        raise DataError(
            f"corpus {path}: is no text in UTF-8 (byte {before + fault.start}). Save it "
            "as UTF-8, or give a Parquet table named .parquet."
        ) from fault
    return digest.hexdigest()


def _is_table(path: Path) -> bool:
    return SUFFIXES.get(path.suffix.lower()) == "parquet"


def _lines(path: Path) -> Iterator[str]:
    found = False
    for line in _of_table(path) if _is_table(path) else _of_text(path):
        if len(line.split()) >= FEWEST_WORDS:
            found = True
            yield line.strip()
    if not found:
        raise DataError(
            f"corpus {path}: holds no text: no line has {FEWEST_WORDS} words or more. Give one "
            "text a line."
        )


def _of_text(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except OSError as fault:
        raise DataError(f"corpus {path}: cannot be read: {fault.strerror}.") from fault
    except UnicodeDecodeError as fault:
        raise DataError(f"corpus {path}: is no text in UTF-8.") from fault


def _of_table(path: Path) -> Iterator[str]:
    """The lines of a Parquet table's column ``text``, or of all its columns of text."""
    import pyarrow
    import pyarrow.parquet

    with whole_parquet(f"corpus {path}"), pyarrow.parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        names = [
            field.name
            for field in schema
            if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
        ]
        if not names:
            raise DataError(
                f"corpus {path}: none of its columns ({', '.join(schema.names)}) holds text."
            )
        names = ["text"] if "text" in names else names
        for batch in file.iter_batches(columns=names):
            for row in batch.to_pylist():
                for name in names:
                    yield from (row[name] or "").splitlines()


def _from_hub(count: int, split: str) -> list[str]:
    import datasets

    try:
        rows = datasets.load_dataset(
            HUB_NAME, HUB_CONFIG, revision=HUB_REVISION, split=split, streaming=True
        )
        texts = list(islice(_paragraphs(row["text"] for row in rows), count))
    except Exception as fault:  # the kinds depend on the http library that the hub's uses
        text = (str(fault).splitlines() or [type(fault).__name__])[0]
        raise DataError(
            f"corpus {WIKI40B!r} cannot be fetched from the hub ({HUB_NAME}): {text} Connect, "
            f"give --corpus FILE, or --corpus {BUILT_IN}."
        ) from fault
    if not texts:
        raise DataError(f"corpus {WIKI40B!r}: {HUB_NAME} holds no text.")
    return texts


def _paragraphs(articles: Iterator[str]) -> Iterator[str]:
    """The first paragraph of each article, without the marks of the data set."""
    for article in articles:
        _, _, rest = article.partition("_START_PARAGRAPH_")
        first = rest.partition("_START_")[0].partition("_NEWLINE_")[0].strip()
        if len(first.split()) >= FEWEST_WORDS:
            yield first
