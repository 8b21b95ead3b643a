"""Training batches of singles and pairs with fresh masks, and fixed held-out batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from clbench.training.device import Precision
from tools.pretrain_tiny.encode import CLS, MASK, SEP, SPECIAL, EncodedRows, cut_batches
from tools.pretrain_tiny.network import Batch, Student
from tools.pretrain_tiny.teacher import Targets

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MaskedText:
    """Segments and their pairs, of which each batch masks tokens anew.

    Attributes
    ----------
    encoded, pairs
        All segments, and numbers of neighbours, shape (pairs, 2).
    targets
        Outputs of the teacher, or None.
    vocab
        Size of the vocabulary.
    limit, budget
        Tokens of an example at most, and of a batch.
    """

    encoded: EncodedRows
    pairs: npt.NDArray[np.int32]
    targets: Targets | None
    vocab: int
    limit: int = 256
    budget: int = 4096

    def epoch(self, seed: list[int]) -> list[Ints]:
        """Return the batches of an epoch; see `plan_epoch`."""
        return plan_epoch(self.encoded, self.pairs, seed, budget=self.budget, limit=self.limit)

    def batch(self, examples: Ints, rng: np.random.Generator) -> Batch:
        """Return examples, shape (b, 2), with fresh masks."""
        return make_batch(
            self.encoded, examples, self.targets, vocab=self.vocab, limit=self.limit, rng=rng
        )

    def tokens(self, examples: Ints) -> int:
        """Return the number of tokens of examples, special ones not counted."""
        n, pair = self.encoded.lengths, examples[:, 1] >= 0
        whole = n[examples[:, 0]] + np.where(pair, n[examples[:, 1]], 0)
        return int(np.minimum(whole, self.limit - 2 - pair).sum())


def plan_epoch(
    encoded: EncodedRows,
    pairs: npt.NDArray[np.int32],
    seed: list[int],
    *,
    budget: int,
    limit: int,
    singles: float = 0.5,
    strangers: float = 0.2,
) -> list[Ints]:
    """Return the batches of an epoch: (first, second) segments, second -1 for a single.

    A share of the segments come as singles. Every pair comes once; in a share of them a random
    segment replaces the second. Batches hold examples of similar length, ``budget`` tokens with
    padding.

    Raises
    ------
    ValueError
        If there are no usable segments.
    """
    rng = np.random.default_rng(seed)
    usable = np.flatnonzero(encoded.lengths >= 3)
    alone = rng.permutation(usable)[: int(singles * len(usable))]
    joined = np.array(pairs, dtype=np.int64)
    swap = rng.random(len(joined)) < strangers
    joined[swap, 1] = rng.choice(usable, int(swap.sum()))
    single = np.stack([alone, np.full_like(alone, -1)], 1)
    examples = np.concatenate([single, joined]).astype(np.int64)
    rng.shuffle(examples)
    n = encoded.lengths
    size = n[examples[:, 0]] + np.where(examples[:, 1] >= 0, n[examples[:, 1]] + 1, 0) + 2
    size = np.minimum(size, limit)
    batches: list[Ints] = []
    for block in np.array_split(np.arange(len(examples)), max(1, int(size.sum() / budget / 50))):
        batches += cut_batches(block[np.argsort(size[block], kind="stable")], size, budget)
    if not batches:
        raise ValueError("the text is too short to train on: no two segments of 3 tokens or more")
    order = rng.permutation(len(batches))
    return [examples[batches[i]] for i in order]


def _fit(first: int, second: int, room: int) -> tuple[int, int]:
    """Return two lengths that fit into `room`, the longer one cut first."""
    half = room // 2
    if first + second <= room:
        return first, second
    if first <= half:
        return first, room - first
    return (room - second, second) if second <= half else (half, room - half)


def mask_tokens(
    ids: Ints, allowed: npt.NDArray[np.bool_], vocab: int, rng: np.random.Generator, rate: float
) -> tuple[Ints, Ints]:
    """Mask as BERT does: of the chosen tokens 80 % become [MASK], 10 % random, 10 % stay."""
    chosen = allowed & (rng.random(ids.shape) < rate)
    labels = np.where(chosen, ids, -1)
    kind = rng.random(ids.shape)
    out = np.where(chosen & (kind < 0.8), MASK, ids)
    other = rng.integers(len(SPECIAL), vocab, ids.shape)
    return np.where(chosen & (kind >= 0.9), other, out), labels


def make_batch(
    encoded: EncodedRows,
    examples: Ints,
    targets: Targets | None,
    *,
    vocab: int,
    limit: int,
    rng: np.random.Generator,
    rate: float = 0.15,
) -> Batch:
    """Collate examples, mask them, and gather the teacher's targets."""
    n = encoded.lengths
    spans = [
        _fit(int(n[a]), int(n[b]), limit - 3) if b >= 0 else (min(int(n[a]), limit - 2), -1)
        for a, b in examples
    ]
    width = max(x + 2 + (y + 1 if y >= 0 else 0) for x, y in spans)
    width = min(limit, -(-width // 8) * 8)
    ids = np.zeros((len(examples), width), dtype=np.int64)
    types, mask, word = np.zeros_like(ids), np.zeros_like(ids), np.full_like(ids, -1)
    for i, ((a, b), (x, y)) in enumerate(zip(examples, spans, strict=True)):
        lo = encoded.token_start[a]
        ids[i, 0], ids[i, 1 : x + 1], ids[i, x + 1] = CLS, encoded.ids[lo : lo + x], SEP
        word[i, 1 : x + 1] = encoded.word[lo : lo + x]
        end = x + 2
        if y >= 0:
            lo = encoded.token_start[b]
            ids[i, end : end + y], ids[i, end + y] = encoded.ids[lo : lo + y], SEP
            word[i, end : end + y] = encoded.word[lo : lo + y]
            types[i, end : end + y + 1] = 1
            end += y + 1
        mask[i, :end] = 1
    masked, labels = mask_tokens(ids, ids >= len(SPECIAL), vocab, rng, rate)
    batch = Batch(*(torch.from_numpy(a) for a in (masked, types, mask, labels)))
    if targets is not None:
        second = np.where(examples[:, 1] >= 0, examples[:, 1], examples[:, 0])
        both = np.stack([examples[:, 0], second], 1)
        batch.words = torch.from_numpy(targets.words[word[word >= 0]].astype(np.float32))
        batch.word_at = torch.from_numpy(word >= 0)
        batch.sentence = torch.from_numpy(targets.sentences[both].astype(np.float32))
        batch.pair = torch.from_numpy(examples[:, 1] >= 0)
    return batch


def held_out_batches(encoded: EncodedRows, *, vocab: int, limit: int, seed: int) -> list[Batch]:
    """Return every held-out segment once, with masks that never change.

    Raises
    ------
    ValueError
        If no segment is long enough.
    """
    rng = np.random.default_rng(seed)
    usable = np.flatnonzero(encoded.lengths >= 8)
    if not len(usable):
        raise ValueError("no usable text in --held-out: no segment of 8 tokens or more")
    usable = usable[np.argsort(encoded.lengths[usable], kind="stable")]
    parts = np.array_split(usable, max(1, len(usable) // 64))
    return [
        make_batch(
            encoded,
            np.stack([part, np.full_like(part, -1)], 1),
            None,
            vocab=vocab,
            limit=limit,
            rng=rng,
        )
        for part in parts
    ]


class Score(NamedTuple):
    """How well the student fills masks."""

    loss: float
    """Mean cross-entropy over the chosen tokens, in nats."""
    accuracy: float
    """Accuracy over all chosen tokens: 80 % [MASK], 10 % another token, 10 % unchanged."""
    blind_accuracy: float
    """Accuracy over the tokens that are replaced by [MASK]."""


def masked_accuracy(student: Student, batches: list[Batch], precision: Precision) -> Score:
    """Return the student's score at filling the masks of ``batches``."""
    losses, right, blind = [], [], []
    with torch.no_grad(), precision.autocast():
        for batch in batches:
            _, logits, target = student.fill(batch)
            losses.append(functional.cross_entropy(logits, target, reduction="none"))
            right.append(logits.argmax(-1) == target)
            blind.append(batch.ids[batch.labels >= 0] == MASK)
    hits, at_masks = torch.cat(right).double(), torch.cat(blind)
    return Score(
        float(torch.cat(losses).double().mean()), float(hits.mean()), float(hits[at_masks].mean())
    )
