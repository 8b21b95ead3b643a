"""The last layer for the first token alone, where nothing else is read.

With first-token pooling the other tokens' output of the last layer goes nowhere: its query,
attention, output and feed-forward parts are needed for one token a row, only keys and values
for all. The pooled vector is the same up to rounding; a sixth of the work of a model with six
layers is saved, a twelfth with twelve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

LastLayer = Callable[[Any, Tensor, Tensor | None], Tensor]
"""Layer, states of shape (b, t, h) and mask of shape (b, 1, t, t) to states (b, 1, h)."""


@contextmanager
def only_first_token(layer: nn.Module, forward: LastLayer) -> Iterator[None]:
    """`layer` computes `forward` inside of the context, and as always after it.

    Where the mask is not written out, as some attention kernels have it, or the layer is to
    be run again on the way back, it computes as always.
    """
    whole = layer.forward

    def first(states: Tensor, attention_mask: Any = None, *rest: Any, **options: Any) -> Any:
        if not (attention_mask is None or getattr(attention_mask, "ndim", 0) == 4):
            return whole(states, attention_mask, *rest, **options)
        return forward(layer, states, attention_mask)

    if getattr(layer, "gradient_checkpointing", False):
        yield
        return
    layer.forward = first
    try:
        yield
    finally:
        del layer.forward


def bert_layer(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """A layer of BERT, RoBERTa or ELECTRA: normalised after attention and feed-forward."""
    own = layer.attention.self
    first = _first(states)
    context = _attend(own, (own.query(first), own.key(states), own.value(states)), mask)
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(context, first))
    return output


def distilbert_layer(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """A layer of DistilBERT."""
    own = layer.attention
    first = _first(states)
    context = _attend(own, (own.q_lin(first), own.k_lin(states), own.v_lin(states)), mask)
    attended = layer.sa_layer_norm(own.out_lin(context) + first)
    output: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
    return output


def _first(states: Tensor) -> Tensor:
    """The first token's states, shape (b, 1, h).

    In one piece: a dense layer adds its bias to parts of a tensor in another order, and with
    other last bits, when somebody watches what torch dispatches.
    """
    return states[:, :1].contiguous()


def _attend(own: Any, parts: tuple[Tensor, Tensor, Tensor], mask: Tensor | None) -> Tensor:
    """The first token's mixture of all values, shape (b, 1, h); `parts`: query, keys, values."""
    query, key, value = (
        part.reshape(*part.shape[:2], -1, own.attention_head_size).transpose(1, 2) for part in parts
    )
    scores = torch.matmul(query * own.scaling, key.transpose(2, 3))
    if mask is not None:
        first = mask[:, :, :1]
        if first.dtype == torch.bool:
            scores = scores.masked_fill(~first, torch.finfo(scores.dtype).min)
        else:
            scores = scores + first
    weights = own.dropout(torch.softmax(scores, dim=-1, dtype=scores.dtype))
    mixed: Tensor = torch.matmul(weights, value).transpose(1, 2).flatten(2)
    return mixed
