"""Train the WordPiece vocabulary and encode segments to flat arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

Ints = npt.NDArray[np.int64]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)


@dataclass(frozen=True)
class EncodedRows:
    """Segments as token ids, without special tokens.

    Attributes
    ----------
    ids : array of int32, shape (tokens,)
        Token ids of all segments, one after another.
    word : array of int32, shape (tokens,)
        Row of the word that the token begins, counted over the corpus; -1 inside a word.
    token_start, word_start : array of int64, shape (segments + 1,)
        Where each segment begins among the tokens and among the words.
    """

    ids: npt.NDArray[np.int32]
    word: npt.NDArray[np.int32]
    token_start: npt.NDArray[np.int64]
    word_start: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.token_start) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each segment."""
        return np.diff(self.token_start)


def _tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    """Return an uncased WordPiece tokenizer like BERT's."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return tokenizer


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count how often each normalised word occurs."""
    tool = _tokenizer({token: i for i, token in enumerate(SPECIAL)})
    counts: Counter[str] = Counter()
    for text in texts:
        clean = tool.normalizer.normalize_str(text)
        counts.update(word for word, _ in tool.pre_tokenizer.pre_tokenize_str(clean))
    return counts


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, required: Iterable[str] = (), pieces: float = 0.25
) -> Tokenizer:
    """Build the vocabulary: characters, frequent parts of rare words, frequent words.

    In so small a vocabulary, WordPiece's merges would spend a fifth of the entries on stems that
    are no words. Counting has no such intermediate entries, and no random ties.

    Parameters
    ----------
    texts
        Texts whose words are counted.
    vocab_size
        Entries, with the special ones.
    required
        Texts whose words all become entries.
    pieces
        Share of the vocabulary for characters and parts of words.
    """
    counts = count_words(texts)
    characters: Counter[str] = Counter()
    for word, n in counts.items():
        for character in word:
            characters[character] += n
    alphabet = sorted(sorted(characters), key=lambda c: -characters[c])[:120]
    entries = dict.fromkeys([*SPECIAL, *sorted(alphabet), *(f"##{c}" for c in sorted(alphabet))])
    ranked = sorted(counts, key=lambda w: (-counts[w], w))
    words = dict.fromkeys([*sorted(count_words(required)), *ranked])
    room = vocab_size - int(pieces * vocab_size)
    whole = [word for word in words if len(word) > 1 and set(word) <= set(alphabet)]
    parts: Counter[str] = Counter()
    for word in whole[room:]:
        for size in range(2, 6):
            for start in range(len(word) - size + 1):
                part = word[start : start + size]
                weight = counts[word] * (size - 1)
                if start == 0:
                    parts[part] += weight
                else:
                    parts["##" + part] += weight * (2 if start + size == len(word) else 1)
    entries.update(dict.fromkeys(whole[:room]))
    for part in sorted(parts, key=lambda p: (-parts[p], p)):
        if len(entries) >= vocab_size:
            break
        entries[part] = None
    return _tokenizer({token: i for i, token in enumerate(list(entries)[:vocab_size])})


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the tokenizer so that ``AutoTokenizer.from_pretrained(folder)`` loads it."""
    from transformers import BertTokenizerFast

    wrapped = BertTokenizerFast(
        tokenizer_object=tokenizer, do_lower_case=True, model_max_length=max_length
    )
    wrapped.save_pretrained(folder)


def encode(tokenizer: Tokenizer, segments: Sequence[str], batch: int = 20_000) -> EncodedRows:
    """Encode segments; truncation and special tokens are left to the caller."""
    ids: list[npt.NDArray[np.int32]] = []
    words: list[npt.NDArray[np.int32]] = []
    token_counts: list[int] = []
    word_counts: list[int] = []
    total = 0
    for start in range(0, len(segments), batch):
        block = list(segments[start : start + batch])
        for encoding in tokenizer.encode_batch(block, add_special_tokens=False):
            index = np.array(encoding.word_ids, dtype=np.int32)
            first = np.ones(len(index), dtype=bool)
            first[1:] = index[1:] != index[:-1]
            # word_ids skips a number where a word normalises to nothing
            rank = np.cumsum(first, dtype=np.int32) - 1
            ids.append(np.array(encoding.ids, dtype=np.int32))
            words.append(np.where(first, rank + total, -1).astype(np.int32))
            token_counts.append(len(index))
            word_counts.append(int(first.sum()))
            total += word_counts[-1]
    return EncodedRows(
        np.concatenate(ids) if ids else np.zeros(0, np.int32),
        np.concatenate(words) if words else np.zeros(0, np.int32),
        np.concatenate([[0], np.cumsum(token_counts)]).astype(np.int64),
        np.concatenate([[0], np.cumsum(word_counts)]).astype(np.int64),
    )


def cut_batches(order: Ints, sizes: Ints, budget: int) -> list[Ints]:
    """Cut ``order``, sorted by size, into batches of at most ``budget`` tokens with padding."""
    batches, start = [], 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * sizes[order[stop]] <= budget:
            stop += 1
        batches.append(order[start:stop])
        start = stop
    return batches
