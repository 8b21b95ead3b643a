"""What is differentiated: the losses of single examples, and the labels that they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from clbench.errors import DataError, SettingsError
from clbench.training.batches import Batch

LossName = Literal["mlm", "clm", "task"]
AnyBatch = Mapping[str, Tensor] | Batch
OwnLoss = Callable[[nn.Module, Any], Tensor]
IGNORED = -100
"""Label of a token that is not masked, as in transformers."""
BLOCK = 256
"""Classes in a block that labels are drawn from."""


@dataclass(frozen=True)
class Outputs:
    """What a model says to a batch.

    Attributes
    ----------
    logits
        Shape (b, m, v) with `labels` (b, m) for language models, (b, c) with (b,) for
        classes, (b,) with (b,) for regression.
    labels
        The true ones.
    counted
        Shape (b, m): which of a language model's places are there.
    """

    logits: Tensor
    labels: Tensor
    counted: Tensor | None = None

    def drawn(self, rng: torch.Generator) -> Outputs:
        """With labels drawn from the model's own distribution in place of the true ones."""
        logits = self.logits.detach()
        if logits.dim() == 1:
            # Squared error is the negative log-likelihood of a variance of ½, up to a constant.
            noise = torch.randn(len(logits), generator=rng).to(logits.device)
            return replace(self, labels=logits + noise * 0.5**0.5)
        return replace(self, labels=_drawn(torch.softmax(logits, -1), rng))

    def each(self) -> Tensor:
        """The loss of every example, shape (b,); for language models the mean over places."""
        if self.counted is not None:
            losses = self._by_place() * self.counted
            return losses.sum(1) / self.counted.sum(1)
        if self.logits.dim() == 1:
            return (self.logits - self.labels).square()
        return functional.cross_entropy(self.logits, self.labels, reduction="none")

    def together(self) -> Tensor:
        """The loss of the batch, a scalar: the mean over all its places or examples."""
        if self.counted is None:
            return self.each().mean()
        return (self._by_place() * self.counted).sum() / self.counted.sum()

    def _by_place(self) -> Tensor:
        flat = functional.cross_entropy(
            self.logits.flatten(0, 1), self.labels.flatten(), reduction="none"
        )
        return flat.view(self.labels.shape)


def _drawn(probabilities: Tensor, rng: torch.Generator) -> Tensor:
    """Numbers below v with these probabilities (…, v), shape (…).

    Sums of a whole vocabulary, one number after the other, would take as long as the model:
    first a block is drawn, then a number in it.
    """
    size = probabilities.shape[-1]
    padded = functional.pad(probabilities, (0, -size % BLOCK))
    blocks = padded.view(*padded.shape[:-1], -1, BLOCK)
    height = torch.rand((*blocks.shape[:-2], 1), generator=rng, dtype=torch.float64)
    block, rest = _at_height(blocks.sum(-1), height.to(blocks.device))
    inside = blocks.gather(-2, block[..., None].expand(*block.shape, BLOCK)).squeeze(-2)
    number = block * BLOCK + _at_height(inside, rest)[0]
    return number.squeeze(-1).clamp_(max=size - 1)  # where the model says nan


def _at_height(weights: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
    """Where a share of the sum of weights (…, n) is reached, and the share left there.

    `height` and both answers have the shape (…, 1); shares are at least 0 and less than 1.
    """
    upper = weights.double().cumsum(-1)
    height = height * upper[..., -1:]
    place = torch.searchsorted(upper, height, right=True).clamp_(max=weights.shape[-1] - 1)
    weight = weights.gather(-1, place).double()
    rest = 1 - (upper.gather(-1, place) - height) / weight
    return place, rest.clamp_(0.0, 1 - 2.0**-53)


class Loss(Protocol):
    """From a model and a batch to logits and labels."""

    def __call__(self, model: nn.Module, batch: AnyBatch) -> Outputs:
        """The model's outputs for a batch on its device."""
        ...


def named_loss(name: str) -> Loss:
    """The loss of that name.

    Raises
    ------
    SettingsError
        If there is none.
    """
    known: dict[str, Loss] = {"mlm": masked_lm, "clm": causal_lm, "task": task_loss}
    if name not in known:
        raise SettingsError(f"loss {name!r}: must be {', '.join(known)} or a function.")
    return known[name]


def masked_lm(model: nn.Module, batch: AnyBatch) -> Outputs:
    """A masked language model at its masked places only.

    Raises
    ------
    DataError
        If the batch has no labels or not one a token, or an example of it no masked token.
    """
    inputs = _mapping(batch, "mlm")
    labels = inputs.get("labels")
    if labels is None:
        raise DataError(
            "loss 'mlm': a batch has no labels. Mask its tokens with clbench.fisher.mask_tokens."
        )
    ids = inputs.get("input_ids")
    if labels.dim() != 2 or (ids is not None and labels.shape != ids.shape):
        wanted = "(b, t)" if ids is None else str(tuple(ids.shape))
        raise DataError(
            f"loss 'mlm': labels have the shape {tuple(labels.shape)} where {wanted} is needed: a "
            "label for each token, -100 where it is not masked. For labels of classes: loss='task'."
        )
    masked = labels != IGNORED
    return _language(model, inputs, labels, masked, "masked token. Mask at least one in each")


def causal_lm(model: nn.Module, batch: AnyBatch) -> Outputs:
    """A decoder at every place that has a next token.

    Raises
    ------
    DataError
        If an example has fewer than two tokens.
    """
    inputs = _mapping(batch, "clm")
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    following = functional.pad(ids[:, 1:], (0, 1))
    there = functional.pad(mask[:, 1:], (0, 1)).bool()
    return _language(model, inputs, following, there, "next token. Leave out texts of one token")


def task_loss(model: nn.Module, batch: AnyBatch) -> Outputs:
    """A classifier of this package, or a transformers model for sequence classification."""
    if isinstance(batch, Batch):
        logits = model(batch.inputs, batch.head).float()
        return Outputs(logits.squeeze(-1) if batch.regression else logits, batch.labels)
    labels = batch.get("labels")
    if labels is None:
        raise DataError("loss 'task': a batch has no labels.")
    logits = model(**_without_labels(batch)).logits.float()
    shapes = f"labels have the shape {_shape(labels)}, outputs {_shape(logits)}"
    if labels.is_floating_point():
        if logits[0].numel() != 1 or labels[0].numel() != 1:
            raise DataError(
                f"loss 'task': {shapes}, and labels are floats: squared error needs one number of "
                "each for an example. For other losses give a function."
            )
        return Outputs(logits.flatten(), labels.flatten())
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise DataError(f"loss 'task': {shapes}. For a language model take loss='mlm' or 'clm'.")
    if logits.shape[1] < 2:
        raise DataError(
            f"loss 'task': {shapes}: one output tells no classes apart. For regression give labels "
            "that are floats."
        )
    return Outputs(logits, labels)


def _shape(values: Tensor) -> str:
    """The shape whatever the number of examples."""
    rest = "".join(f" {size}," for size in values.shape[1:])
    return f"(b,{rest.rstrip(',')})"


def _language(
    model: nn.Module, inputs: Mapping[str, Tensor], labels: Tensor, there: Tensor, what: str
) -> Outputs:
    counts = there.sum(1)
    if int(counts.min()) == 0:
        raise DataError(f"an example has no {what}.")
    # Places that count first, then as many others as the fullest example needs.
    order = torch.sort(there.int(), dim=1, descending=True, stable=True).indices
    places = order[:, : int(counts.max())]
    counted = there.gather(1, places)
    with _only_places(model, places):
        logits = model(**_without_labels(inputs)).logits.float()
    if logits.shape[:-1] != places.shape:
        raise DataError(
            f"{type(model).__name__} has no language-model head: its outputs are of the shape "
            f"{_shape(logits)}. For a classifier take loss='task'."
        )
    chosen = labels.gather(1, places).masked_fill(~counted, 0)
    return Outputs(logits, chosen, counted.to(logits.dtype))


@contextmanager
def _only_places(model: nn.Module, places: Tensor) -> Iterator[None]:
    """Let the language-model head see these places (b, m) of the last hidden state only."""
    base = getattr(model, "base_model", model)
    if base is model:
        raise DataError(f"{type(model).__name__} has no language-model head.")

    def pick(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
        hidden = output[0]
        picked = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
        if isinstance(output, tuple):
            return (picked, *output[1:])
        output.last_hidden_state = picked
        return output

    handle = base.register_forward_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def _without_labels(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in inputs.items() if key != "labels"}


def _mapping(batch: AnyBatch, name: str) -> Mapping[str, Tensor]:
    if isinstance(batch, Batch):
        raise DataError(f"loss {name!r}: a batch is a task's, not text for a language model.")
    return batch


# Batches of either kind.


def checked(batch: AnyBatch, number: int) -> AnyBatch:
    """The batch, if it is one.

    Raises
    ------
    DataError
        If it is neither a dictionary of tensors of one length nor a stage's batch.
    """
    if isinstance(batch, Batch):
        return batch
    if not isinstance(batch, Mapping) or not batch:
        raise DataError(
            f"batch {number + 1} is a {type(batch).__name__} (or empty) where a dictionary of "
            "tensors is needed, such as {'input_ids': …, 'labels': …}."
        )
    for key, value in batch.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            raise DataError(
                f"batch {number + 1}: {key!r} is no tensor with a row for each example."
            )
    lengths = {key: len(value) for key, value in batch.items()}
    if not any(lengths.values()):
        raise DataError(f"batch {number + 1} has no examples.")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(f"batch {number + 1}: its tensors differ in their examples: {told}.")
    return batch


def size_of(batch: AnyBatch) -> int:
    """Number of examples."""
    return len(batch) if isinstance(batch, Batch) else len(next(iter(batch.values())))


def take(batch: AnyBatch, examples: list[int]) -> AnyBatch:
    """Some examples of a batch; one may be taken twice."""
    if isinstance(batch, Batch):
        return replace(
            batch,
            inputs={key: value[examples] for key, value in batch.inputs.items()},
            labels=batch.labels[examples],
            positions=batch.positions[examples],
        )
    return {key: value[examples] for key, value in batch.items()}


def on_device(batch: AnyBatch, device: torch.device) -> AnyBatch:
    """The batch where the model is."""
    if isinstance(batch, Batch):
        inputs = {key: value.to(device) for key, value in batch.inputs.items()}
        return replace(batch, inputs=inputs, labels=batch.labels.to(device))
    return {key: value.to(device) for key, value in batch.items()}
