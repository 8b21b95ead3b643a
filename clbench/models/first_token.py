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

from torch import Tensor, nn

LastLayer = Callable[[Any, Tensor, Tensor | None], Tensor]
"""Layer, states of shape (b, t, h) and mask of shape (b, 1, t, t) to states (b, 1, h)."""

SKIPS_QUERIES = ("sdpa", "clbench_stream")
"""Attention implementations that take fewer queries than keys."""


@contextmanager
def only_first_token(layer: nn.Module, forward: LastLayer) -> Iterator[None]:
    """`layer` computes `forward` inside of the context, and as always after it."""

    def first(states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        return forward(layer, states, attention_mask)

    layer.forward = first
    try:
        yield
    finally:
        del layer.forward


def can_skip(backbone: Any, layer: Any) -> bool:
    """Whether attention and layer let the other queries be left out."""
    attention = getattr(backbone.config, "_attn_implementation", None)
    return attention in SKIPS_QUERIES and not getattr(layer, "gradient_checkpointing", False)


def bert_layer(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """A layer of BERT, RoBERTa or ELECTRA: normalised after attention and feed-forward."""
    own = layer.attention.self
    context = _attend(own, (own.query, own.key, own.value), states, mask)
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(context, states[:, :1]))
    return output


def distilbert_layer(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """A layer of DistilBERT."""
    own = layer.attention
    context = own.out_lin(_attend(own, (own.q_lin, own.k_lin, own.v_lin), states, mask))
    attended = layer.sa_layer_norm(context + states[:, :1])
    output: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
    return output


def _attend(
    own: Any, projections: tuple[Any, Any, Any], states: Tensor, mask: Tensor | None
) -> Tensor:
    """The first token's mixture of all values, shape (b, 1, h)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attention = ALL_ATTENTION_FUNCTIONS[own.config._attn_implementation]
    query, key, value = (
        project(read).unflatten(-1, (-1, own.attention_head_size)).transpose(1, 2)
        for project, read in zip(projections, (states[:, :1], states, states), strict=True)
    )
    context, _ = attention(
        own,
        query,
        key,
        value,
        None if mask is None else mask[:, :, :1],
        dropout=own.dropout.p if own.training else 0.0,
        scaling=own.scaling,
    )
    mixed: Tensor = context.flatten(2)
    return mixed
