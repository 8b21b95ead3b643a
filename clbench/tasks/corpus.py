"""Text corpora for language-model losses: a file, a corpus on the hub, or the built-in one.

About a tenth of each corpus is held out: methods never see it, and the forgetting of the
pretraining is scored on it. Importing this module loads neither torch nor transformers.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from clbench.core.errors import DataError, named
from clbench.core.files import digest, user_path
from clbench.core.seeds import numpy_stream
from clbench.tasks.spec import SUFFIXES
from clbench.tasks.synthetic import SIZES, TEXTS, unlabelled

BUILT_IN = "built-in"
WIKI40B = "wiki40b/en"
HUB_NAME, HUB_CONFIG, HUB_REVISION = "google/wiki40b", "en", "main"
"""Cleaned Wikipedia of 2019 (Guo et al. 2020); the repository has no later version."""
FEWEST_WORDS = 5
"""Minimum words of a line; shorter lines are headings and the like."""
HELD_OUT = 26
"""A line is held out if its digest, from 0 to 255, is below this: about a tenth."""


def resolve_corpus(corpus: str, base: Path, key: str) -> str:
    """Return `corpus`, as an absolute path if it is a file.

    It is ``built-in``, ``wiki40b/en`` or the path, relative to the folder `base`, of a text file
    or a Parquet table. Raises a DataError that names `key`, such as ``--corpus``, for a missing
    file.
    """
    if corpus in (BUILT_IN, WIKI40B):
        return corpus
    path = user_path(corpus, key, base).resolve()
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "there is no such file"
        raise DataError(
            f"{key} {corpus!r}: {problem} ({path}). Give a text file with one text per line, a "
            f"Parquet table, {WIKI40B} for the corpus on the hub, or {BUILT_IN}."
        )
    return str(path)


def corpus_identity(corpus: str) -> dict[str, Any]:
    """Return what identifies the texts of a resolved corpus: plain JSON values without paths."""
    if corpus == BUILT_IN:
        return {"built-in": digest("\n".join(unlabelled(100)))}
    if corpus == WIKI40B:
        return {"hub": HUB_NAME, "config": HUB_CONFIG, "revision": HUB_REVISION}
    if not Path(corpus).is_file():
        raise DataError(f"corpus {corpus}: there is no such file.")
    next(_lines(Path(corpus)))
    return {"file": digest(Path(corpus)), "held-out": f"{HELD_OUT}/256"}


def corpus_name(corpus: str) -> str:
    """Return the name of a resolved corpus in reports, without folders."""
    return corpus if corpus in (BUILT_IN, WIKI40B) else Path(corpus).name


def read_corpus(corpus: str, count: int, seed: int = 0, *, held_out: bool = False) -> list[str]:
    """Return at most `count` texts, the same ones whenever the seed is the same.

    A text is a line of a file with at least five words, such a line in the column ``text`` of a
    Parquet table (in all text columns if there is no ``text``), or the first paragraph of an
    article of wiki40b, which is read from its start. With `held_out`, the texts are of the
    held-out part: about a tenth of the lines of a file, the validation split of wiki40b, or
    built-in texts that no built-in task trains on.

    Raises a DataError if the corpus cannot be read or downloaded, or contains no text.
    """
    if corpus == BUILT_IN:
        size = SIZES[TEXTS, "validation" if held_out else "train"]
        return unlabelled(min(count, size), seed, held_out=held_out)
    if corpus == WIKI40B:
        return _from_hub(count, "validation" if held_out else "train")
    texts = [text for text in _lines(Path(corpus)) if _is_held_out(text) == held_out]
    if not texts:
        part = "the held-out tenth" if held_out else "the part that is not held out"
        raise DataError(f"corpus {corpus}: {part} is empty. Give a file with more lines.")
    if len(texts) <= count:
        return texts
    positions = numpy_stream("corpus", seed).permutation(len(texts))[:count]
    return [texts[i] for i in sorted(positions)]


def texts_for_trials(corpus: str, count: int, seed: int) -> list[str]:
    """Return at most `count` held-out texts other than the ones for reported scores.

    Raises a DataError if there are no others.
    """
    sizes = count, 2 * count
    reported, more = (read_corpus(corpus, size, seed, held_out=True) for size in sizes)
    if not (others := sorted({*more} - {*reported}, key=more.index)):
        raise DataError(
            f"corpus {corpus_name(corpus)}: reported runs are scored on all of its "
            f"{len(reported)} held-out texts, so none is left for tuning. Give a larger corpus, or "
            "score fewer texts."
        )
    return others


def _is_held_out(text: str) -> bool:
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] < HELD_OUT


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines with enough words; raise a DataError if there are none."""
    import pyarrow as pa

    is_table, empty = SUFFIXES.get(path.suffix.lower()) == "parquet", True
    try:
        for line in (_table_lines if is_table else _text_lines)(path):
            if len(line.split()) >= FEWEST_WORDS:
                empty = False
                yield line.strip()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"corpus {path}: cannot be read ({reason}). Save it as UTF-8, or name a Parquet table "
            "*.parquet."
        ) from error
    if empty:
        raise DataError(
            f"corpus {path}: no line has {FEWEST_WORDS} words or more. Give one text per line."
        )


def _text_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        yield from file


def _table_lines(path: Path) -> Iterator[str]:
    """Yield the lines in a Parquet table's column ``text``, or else in all its text columns."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        texts = ("string", "large_string")
        names = [field.name for field in file.schema_arrow if str(field.type) in texts]
        names = ["text"] if "text" in names else names
        for batch in file.iter_batches(columns=names):
            for row in batch.to_pylist():
                for name in names:
                    yield from (row[name] or "").splitlines()


def _from_hub(count: int, split: str) -> list[str]:
    import datasets

    try:
        articles = datasets.load_dataset(
            HUB_NAME, HUB_CONFIG, revision=HUB_REVISION, split=split, streaming=True
        )
        bodies = (row["text"].partition("_START_PARAGRAPH_")[2] for row in articles)
        first = (b.partition("_START_")[0].partition("_NEWLINE_")[0].strip() for b in bodies)
        texts = list(islice((t for t in first if len(t.split()) >= FEWEST_WORDS), count))
    except Exception as error:  # the types depend on the HTTP library of the hub's client
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"corpus {WIKI40B!r}: {HUB_NAME} could not be downloaded ({reason}). Check the "
            f"network, or give {named('corpus', 'FILE')} or {named('corpus', BUILT_IN)}."
        ) from error
    if not texts:
        raise DataError(f"corpus {WIKI40B!r}: {HUB_NAME} contains no text.")
    return texts
