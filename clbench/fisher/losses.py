"""Losses of single examples, and the batches of text or rows that they are computed on."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from clbench.core.errors import DataError
from clbench.core.options import checks_arguments
from clbench.models.answer_scores import only_at
from clbench.models.encoding import IGNORED
from clbench.training.batches import Batch

LossName = Literal["mlm", "clm", "task"]
AnyBatch = Mapping[str, Tensor] | Batch
LossFunction = Callable[[nn.Module, Any], Tensor]
Masking = Literal["bert", "mask", "any-position"]
TextBatch = dict[str, Tensor]
SHARE = 0.15
"""Share of the tokens that are predicted (Devlin et al. 2019, section 3.1)."""
BATCH_TOKENS = 2048
"""Most tokens of a batch, padding included."""
CAUSAL_BATCH_TOKENS = 512
"""The same for causal models, which project every token onto the whole vocabulary."""
BLOCK = 256
"""Classes in a block that labels are sampled from."""


@dataclass(frozen=True)
class Outputs:
    """Outputs of a model for a batch.

    Attributes
    ----------
    logits
        Shape (b, m, v) with `labels` (b, m) for language models, (b, c) with (b,) for
        classes, (b,) with (b,) for regression.
    labels
        The labels of the loss.
    mask
        For language models, shape (b, m): 1 for predicted tokens, 0 for padding; else None.
    """

    logits: Tensor
    labels: Tensor
    mask: Tensor | None = None

    def sample_labels(self, rng: torch.Generator) -> Self:
        """Return the same outputs with labels drawn from the model's own distribution."""
        logits = self.logits.detach()
        if logits.dim() == 1:
            # Squared error is the negative log-likelihood of a variance of ½, up to a constant.
            noise = torch.randn(len(logits), generator=rng).to(logits.device)
            return replace(self, labels=logits + noise * 0.5**0.5)
        return replace(self, labels=_sample(torch.softmax(logits, -1), rng))

    def losses(self) -> Tensor:
        """Return the loss of every example, shape (b,): the mean over its tokens."""
        if self.mask is not None:
            losses = self._by_token() * self.mask
            return losses.sum(1) / self.mask.sum(1)
        if self.logits.dim() == 1:
            return (self.logits - self.labels).square()
        return functional.cross_entropy(self.logits, self.labels, reduction="none")

    def mean_loss(self) -> Tensor:
        """Return the loss of the batch, a scalar: the mean over all its tokens or examples."""
        if self.mask is None:
            return self.losses().mean()
        return (self._by_token() * self.mask).sum() / self.mask.sum()

    def _by_token(self) -> Tensor:
        flat = self.logits.flatten(0, 1), self.labels.flatten()
        return functional.cross_entropy(*flat, reduction="none").view(self.labels.shape)


def _sample(probabilities: Tensor, rng: torch.Generator) -> Tensor:
    """Return classes, shape (…), drawn with the probabilities of shape (…, v).

    Draws a block of classes, then a class in it: cumulative sums over a whole vocabulary would
    take as long as the model.
    """
    size = probabilities.shape[-1]
    padded = functional.pad(probabilities, (0, -size % BLOCK))
    blocks = padded.view(*padded.shape[:-1], -1, BLOCK)
    share = torch.rand((*blocks.shape[:-2], 1), generator=rng, dtype=torch.float64)
    block, rest = _index_at(blocks.sum(-1), share.to(blocks.device))
    inside = blocks.gather(-2, block[..., None].expand(*block.shape, BLOCK)).squeeze(-2)
    number = block * BLOCK + _index_at(inside, rest)[0]
    return number.squeeze(-1).clamp_(max=size - 1)  # NaN from the model gives numbers too large


def _index_at(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index at which the cumulative weights (…, n) reach `share` of their sum.

    Also returns which share of that index's own weight is needed. All have the shape (…, 1);
    shares are at least 0 and less than 1.
    """
    upper = weights.double().cumsum(-1)
    target = share * upper[..., -1:]
    index = torch.searchsorted(upper, target, right=True).clamp_(max=weights.shape[-1] - 1)
    weight = weights.gather(-1, index).double()
    rest = 1 - (upper.gather(-1, index) - target) / weight
    return index, rest.clamp_(0.0, 1 - 2.0**-53)


Loss = Callable[[nn.Module, AnyBatch], Outputs]
"""A function from a model and a batch on its device to logits and labels.

It raises a DataError if the labels are missing or do not fit the outputs."""


def named_loss(name: LossName) -> Loss:
    """Return the loss of that name."""
    losses: dict[str, Loss] = {"mlm": masked_lm, "clm": causal_lm, "task": task_loss}
    return losses[name]


def masked_lm(model: nn.Module, batch: AnyBatch) -> Outputs:
    """Return a masked language model's outputs at its masked tokens."""
    inputs = _text_of(batch, "mlm")
    labels = inputs.get("labels")
    shape = inputs["input_ids"].shape if "input_ids" in inputs else None
    if labels is None or labels.dim() != 2 or shape not in (None, labels.shape):
        what = "none" if labels is None else f"of shape {tuple(labels.shape)}"
        raise DataError(
            f"loss 'mlm' needs a label for each token, -100 where it is not masked; labels are "
            f"{what}. Mask tokens with clbench.fisher.mask_tokens. For classes use loss='task'."
        )
    return _language(model, inputs, labels, "masked token")


def causal_lm(model: nn.Module, batch: AnyBatch) -> Outputs:
    """Return a decoder's outputs at every token that has a next one."""
    inputs = _text_of(batch, "clm")
    return _language(model, inputs, next_tokens(inputs), "next token")


def next_tokens(inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the next token of each token, shape (b, t), -100 where either is missing."""
    ids = inputs["input_ids"]
    real = inputs.get("attention_mask", torch.ones_like(ids)) != 0
    labels = ids[:, 1:].masked_fill(~(real[:, :-1] & real[:, 1:]), IGNORED)
    return functional.pad(labels, (0, 1), value=IGNORED)


def task_loss(model: nn.Module, batch: AnyBatch) -> Outputs:
    """Return outputs of a clbench or transformers classifier."""
    if isinstance(batch, Batch):
        logits = model(batch.inputs, batch.head).float()
        if batch.labels.dim() == 2:  # answers of a language model
            mask = batch.labels != IGNORED
            return Outputs(logits, batch.labels.masked_fill(~mask, 0), mask.to(logits.dtype))
        if batch.regression:
            return Outputs(logits.squeeze(-1), batch.labels)
        return Outputs(batch.among_compared(logits), batch.labels)
    labels = batch.get("labels")
    if labels is None:
        raise DataError("loss 'task': a batch has no key 'labels'. Add the true classes or values.")
    logits = model(**_without_labels(batch)).logits.float()
    if labels.is_floating_point() and logits[0].numel() == labels[0].numel() == 1:
        return Outputs(logits.flatten(), labels.flatten())
    classes = logits.dim() == 2 and labels.shape == logits.shape[:1] and logits.shape[1] > 1
    if labels.is_floating_point() or not classes:
        raise DataError(
            "loss 'task' needs one integer label and two outputs or more, or one float label and "
            f"one output, for each example. Labels of an example have the shape "
            f"{tuple(labels.shape[1:])}, outputs {tuple(logits.shape[1:])}. For language models "
            "use loss='mlm' or 'clm'; for other losses pass a function."
        )
    return Outputs(logits, labels)


def _language(model: nn.Module, inputs: Mapping[str, Tensor], labels: Tensor, what: str) -> Outputs:
    predicted = labels != IGNORED
    counts = predicted.sum(1)
    if int(counts.min()) == 0:
        raise DataError(f"an example has no {what}. Leave it out.")
    # Predicted tokens come first; examples with fewer of them are filled up with other tokens.
    order = torch.sort(predicted.int(), dim=1, descending=True, stable=True).indices
    positions = order[:, : int(counts.max())]
    mask = predicted.gather(1, positions)
    if getattr(model, "base_model", model) is model:
        raise _no_head(model)
    with only_at(model, positions) as picks:
        logits = model(**_without_labels(inputs)).logits.float()
    if not picks and logits.ndim == 3:  # as OPT, which does not call its body
        logits = logits.gather(1, positions[..., None].expand(-1, -1, logits.shape[-1]))
    if logits.shape[:-1] != positions.shape:
        raise _no_head(model)
    return Outputs(logits, labels.gather(1, positions).masked_fill(~mask, 0), mask.to(logits.dtype))


def _no_head(model: nn.Module) -> DataError:
    name = type(model).__name__
    return DataError(f"{name} has no language-model head. For a classifier use loss='task'.")


def _without_labels(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in inputs.items() if key != "labels"}


def _text_of(batch: AnyBatch, loss: str) -> Mapping[str, Tensor]:
    if isinstance(batch, Batch):
        raise DataError(f"loss {loss!r} needs batches of text. For rows of a task use loss='task'.")
    return batch


# Batches of either kind.


def check_batch(batch: AnyBatch, number: int) -> AnyBatch:
    """Return the batch; raise a DataError unless its tensors have one row for each example."""
    if isinstance(batch, Batch):
        return batch
    where = f"batch {number + 1} must be a dictionary of tensors with one row for each example"
    if not isinstance(batch, Mapping):
        raise DataError(f"{where}, not a {type(batch).__name__}.")
    rows = {k: len(v) if isinstance(v, Tensor) and v.dim() else None for k, v in batch.items()}
    if len(set(rows.values())) != 1 or not all(rows.values()):
        raise DataError(f"{where}; its rows are {rows}.")
    return batch


def size_of(batch: AnyBatch) -> int:
    """Return the number of examples."""
    return len(batch) if isinstance(batch, Batch) else len(next(iter(batch.values())))


def take(batch: AnyBatch, examples: list[int]) -> AnyBatch:
    """Return some examples of a batch; an example may be taken twice."""
    if isinstance(batch, Batch):
        return batch.take(examples)
    return {key: value[examples] for key, value in batch.items()}


def on_device(batch: AnyBatch, device: torch.device) -> AnyBatch:
    """Return the batch on `device`."""
    if isinstance(batch, Batch):
        inputs = {key: value.to(device) for key, value in batch.inputs.items()}
        return replace(batch, inputs=inputs, labels=batch.labels.to(device))
    return {key: value.to(device) for key, value in batch.items()}


@checks_arguments
def mask_tokens(
    inputs: Mapping[str, Tensor],
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


@checks_arguments
def text_batches(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    generator: torch.Generator,
    masking: Masking | None = "bert",
    batch_size: int | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Yield texts as batches for `diagonal_fisher`, padded on the right.

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
        padded = tokenizer.pad(rows, padding_side="right", return_tensors="pt")
        inputs = {key: value for key, value in padded.items() if isinstance(value, Tensor)}
        if masking is not None:
            inputs = mask_tokens(inputs, tokenizer, generator, masking=masking)
        yield inputs


def _smallest(keys: Tensor, candidates: Tensor, share: float) -> Tensor:
    """Return a mask of each row's candidates with the smallest keys: a `share`, at least one."""
    counts = candidates.sum(1)
    if int(counts.min()) == 0:
        raise DataError("a text has no token that can be masked. Leave it out.")
    most = (counts.float() * share).round().clamp_(min=1)
    rank = keys.masked_fill(~candidates, 2.0).argsort(1).argsort(1)
    return rank < most[:, None]
