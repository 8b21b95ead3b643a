"""Language modelling: batches of text with masked tokens, and a head for a bare checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from clbench.core.errors import DataError
from clbench.fisher.losses import Loss, on_device
from clbench.models.encoding import IGNORED
from clbench.training.device import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Masking = Literal["bert", "mask", "any-position"]
SHARE = 0.15
"""Share of the tokens that are predicted (Devlin et al. 2019, section 3.1)."""
BATCH_TOKENS = 2048
"""Most tokens of a batch, padding included."""
CAUSAL_BATCH_TOKENS = 512
"""The same for causal models, which project every token onto the whole vocabulary."""
HEAD_LR = 1e-3
"""Learning rate of `fit_head`: Adam's suggested default (Kingma & Ba 2015, Algorithm 1)."""


def mask_tokens(
    inputs: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerBase,
    generator: torch.Generator,
    *,
    masking: Masking = "bert",
    share: float = SHARE,
) -> dict[str, Tensor]:
    """Return masked inputs with ``labels``: the true token where it is predicted, else -100.

    Parameters
    ----------
    inputs
        ``input_ids`` and ``attention_mask``, shape (b, t), on the CPU; others are kept.
    tokenizer
        Gives the special tokens and the mask.
    generator
        The only source of randomness.
    masking
        ``bert``: of each text `share` of its real tokens, rounded and at least one; 80 % become
        the mask, 10 % a random token, 10 % stay (Devlin et al. 2019, section 3.1 and appendix
        A.1). ``mask``: the same tokens, all masked. ``any-position``: every position with
        probability `share`, special tokens and padding included, all masked, as the code of
        Kenneweg et al. 2022 does.
    share
        Share of the tokens that are predicted.

    Raises
    ------
    DataError
        If the tokenizer has no mask, or a text has no real token.
    """
    if tokenizer.mask_token_id is None:
        raise DataError("the tokenizer has no mask token. Use that of a masked language model.")
    ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    keys = torch.rand(ids.shape, generator=generator)
    if masking == "any-position":
        predicted = keys < share
        predicted[torch.arange(len(ids)), keys.argmin(1)] = True  # a loss needs one
    else:
        predicted = _smallest(keys, real & ~torch.isin(ids, special), share)
    masked = predicted.clone()
    new_ids = ids.clone()
    if masking == "bert":
        fate = torch.rand(ids.shape, generator=generator)
        masked &= fate < 0.8
        random = predicted & (fate >= 0.8) & (fate < 0.9)
        plain = torch.ones(len(tokenizer), dtype=torch.bool)
        plain[special] = False
        words = plain.nonzero().squeeze(1)
        numbers = torch.randint(len(words), ids.shape, generator=generator)
        new_ids = torch.where(random, words[numbers], new_ids)
    new_ids = new_ids.masked_fill(masked, int(tokenizer.mask_token_id))
    return {**inputs, "input_ids": new_ids, "labels": ids.masked_fill(~predicted, IGNORED)}


def text_batches(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    generator: torch.Generator,
    masking: Masking | None = "bert",
    batch_size: int | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Yield texts as padded batches for `diagonal_fisher`.

    Parameters
    ----------
    texts
        One example each. Texts without a token to predict are left out.
    tokenizer, generator, masking
        As in `mask_tokens`; with masking None nothing is masked, for causal models.
    max_length
        Tokens after which a text is cut, special ones included.
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
    usable = [
        number
        for number, ids in enumerate(encoded["input_ids"])
        if (len(ids) > 1 if masking is None else any(token not in special for token in ids))
    ]
    if not usable:
        raise DataError("no text of the corpus has a token to predict. Use longer texts.")
    if batch_size is not None:
        groups = [usable[i : i + batch_size] for i in range(0, len(usable), batch_size)]
    else:
        most = CAUSAL_BATCH_TOKENS if masking is None else BATCH_TOKENS
        lengths = {number: len(encoded["input_ids"][number]) for number in usable}
        groups = [[]]
        for number in sorted(usable, key=lambda n: (lengths[n], n)):
            if groups[-1] and (len(groups[-1]) + 1) * lengths[number] > most:
                groups.append([])
            groups[-1].append(number)
    for numbers in groups:
        rows = {key: [encoded[key][number] for number in numbers] for key in encoded}
        padded = tokenizer.pad(rows, return_tensors="pt")
        inputs = {key: value for key, value in padded.items() if isinstance(value, Tensor)}
        if masking is not None:
            inputs = mask_tokens(inputs, tokenizer, generator, masking=masking)
        yield inputs


def fit_head(
    model: nn.Module,
    backbone: Collection[str],
    batches: Sequence[dict[str, Tensor]],
    loss: Loss,
    *,
    steps: int,
    precision: Precision,
) -> tuple[float, float]:
    """Train all weights but those named in `backbone` on the language-model loss with Adam.

    Dropout is off; `batches` are repeated until the steps are done.

    Returns
    -------
    tuple of float
        Mean loss over the first and over the last tenth of the steps.
    """
    weights = dict(model.named_parameters())
    flags = {name: parameter.requires_grad for name, parameter in weights.items()}
    for name, parameter in weights.items():
        parameter.requires_grad_(name not in backbone)
    head = [parameter for name, parameter in weights.items() if name not in backbone]
    optimizer = torch.optim.Adam(head, lr=HEAD_LR)
    device = head[0].device
    model.eval()
    losses = []
    for batch in islice(cycle(batches), steps):
        with precision.autocast():
            value = loss(model, on_device(batch, device)).mean_loss()
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(value.detach())
    optimizer.zero_grad()
    for name, parameter in weights.items():
        parameter.requires_grad_(flags[name])
    tenth = max(1, steps // 10)
    first, last = torch.stack(losses[:tenth]).mean(), torch.stack(losses[-tenth:]).mean()
    return float(first), float(last)


def _smallest(keys: Tensor, candidates: Tensor, share: float) -> Tensor:
    """Return a mask of each row's candidates with the smallest keys: a `share`, at least one."""
    counts = candidates.sum(1)
    if int(counts.min()) == 0:
        raise DataError("a text has no token that can be masked. Leave it out.")
    most = (counts.float() * share).round().clamp_(min=1)
    rank = keys.masked_fill(~candidates, 2.0).argsort(1).argsort(1)
    return rank < most[:, None]
