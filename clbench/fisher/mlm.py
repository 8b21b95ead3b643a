"""Batches of text for the loss of a language model: tokens, and which of them are masked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from clbench.errors import DataError
from clbench.fisher.losses import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Masking = Literal["bert", "mask", "any-position"]
SHARE = 0.15
"""Of the tokens that are predicted (Devlin et al. 2019, section 3.1)."""
BATCH_TOKENS = 2048
"""Tokens of a batch, padding included, at most."""
CAUSAL_BATCH_TOKENS = 512
"""The same where each token is projected onto the whole vocabulary."""


def mask_tokens(
    inputs: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerBase,
    generator: torch.Generator,
    *,
    masking: Masking = "bert",
    share: float = SHARE,
) -> dict[str, Tensor]:
    """Masked inputs with ``labels``: the true token where it is to be predicted, else -100.

    Parameters
    ----------
    inputs
        ``input_ids`` and ``attention_mask``, shape (b, t), on the CPU; others are kept.
    tokenizer
        Knows the special tokens and the mask.
    generator
        The only source of randomness.
    masking
        ``bert``: of each text `share` of its real tokens, rounded and at least one; 80 %
        become the mask, 10 % a random token, 10 % stay (Devlin et al. 2019, section 3.1
        and appendix A.1). ``mask``: the same tokens, all masked. ``any-position``: every
        position with probability `share`, special tokens and padding included, all
        masked, as the code of Kenneweg et al. 2022 does.
    share
        Share of the tokens that are predicted.

    Raises
    ------
    DataError
        If the tokenizer has no mask, or a text no real token.
    """
    if tokenizer.mask_token_id is None:
        raise DataError("the tokenizer has no mask token, so its model is no masked one.")
    ids, there = inputs["input_ids"], inputs["attention_mask"].bool()
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    height = torch.rand(ids.shape, generator=generator)
    if masking == "any-position":
        chosen = height < share
        chosen[torch.arange(len(ids)), height.argmin(1)] = True  # a loss needs one
    else:
        chosen = _lowest(height, there & ~torch.isin(ids, special), share)
    masked = chosen.clone()
    replaced = ids.clone()
    if masking == "bert":
        fate = torch.rand(ids.shape, generator=generator)
        masked &= fate < 0.8
        random = chosen & (fate >= 0.8) & (fate < 0.9)
        plain = torch.ones(len(tokenizer), dtype=torch.bool)
        plain[special] = False
        words = plain.nonzero().squeeze(1)
        drawn = torch.randint(len(words), ids.shape, generator=generator)
        replaced = torch.where(random, words[drawn], replaced)
    replaced = replaced.masked_fill(masked, int(tokenizer.mask_token_id))
    return {**inputs, "input_ids": replaced, "labels": ids.masked_fill(~chosen, IGNORED)}


def text_batches(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    generator: torch.Generator,
    masking: Masking | None = "bert",
    batch_size: int | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Texts as padded batches for `diagonal_fisher`.

    Parameters
    ----------
    texts
        One example each. Those without a token to predict are left out.
    tokenizer
        The model's own.
    max_length
        Tokens after which a text is cut, special ones included.
    generator
        Of the masks.
    masking
        As in `mask_tokens`; None masks nothing, for causal models.
    batch_size
        Examples in a batch, in the order of `texts`; None sorts by length and fills
        batches to a fixed number of tokens, which changes no per-example result.

    Raises
    ------
    DataError
        If no text has a token to predict.
    """
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length)
    special = frozenset(tokenizer.all_special_ids)
    kept = [
        number
        for number, row in enumerate(encoded["input_ids"])
        if (len(row) > 1 if masking is None else any(token not in special for token in row))
    ]
    if not kept:
        raise DataError("no text of the corpus has a token to predict.")
    lengths = {number: len(encoded["input_ids"][number]) for number in kept}
    most = CAUSAL_BATCH_TOKENS if masking is None else BATCH_TOKENS
    for numbers in _divided(kept, lengths, batch_size, most):
        rows = {key: [encoded[key][number] for number in numbers] for key in encoded}
        padded = tokenizer.pad(rows, return_tensors="pt")
        inputs = {key: value for key, value in padded.items() if isinstance(value, Tensor)}
        if masking is not None:
            inputs = mask_tokens(inputs, tokenizer, generator, masking=masking)
        yield inputs


def _lowest(height: Tensor, candidates: Tensor, share: float) -> Tensor:
    """Of each row's candidates the given share, at least one: those of least height."""
    counts = candidates.sum(1)
    if int(counts.min()) == 0:
        raise DataError("a text has no token that could be masked.")
    wanted = (counts.float() * share).round().clamp_(min=1)
    rank = height.masked_fill(~candidates, 2.0).argsort(1).argsort(1)
    return rank < wanted[:, None]


def _divided(
    kept: list[int], lengths: dict[int, int], batch_size: int | None, most: int
) -> Iterator[list[int]]:
    if batch_size is not None:
        for start in range(0, len(kept), batch_size):
            yield kept[start : start + batch_size]
        return
    batch: list[int] = []
    for number in sorted(kept, key=lambda n: (lengths[n], n)):
        if batch and (len(batch) + 1) * lengths[number] > most:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
