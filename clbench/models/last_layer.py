"""The last layer for the first token alone, where nothing else is read.

With first-token pooling the other tokens' output of the last layer goes nowhere: its query,
attention, output and feed-forward parts are needed for one token a row, only keys and values
for all. The pooled vector is the same up to rounding; a sixth of the work of a model with six
layers is saved, a twelfth with twelve.

Whoever looks at the last layer or has changed it (a hook, a `forward` or a module of one's own)
gets it whole: see `is_stock`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

TOKENWISE = frozenset(
    (
        *(nn.Linear, nn.LayerNorm, nn.Dropout, nn.Identity, nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh),
        *(nn.ModuleList, nn.ModuleDict, nn.ParameterDict),
    )
)
"""Modules of torch that treat every token alike."""
KNOWN = ("transformers.", "peft.tuners.lora.", "clbench.training.dropout")
"""Whose modules do what this file takes them to do."""

LastLayer = Callable[[Any, Tensor, Tensor | None], Tensor]
"""Layer, states of shape (b, t, h) and mask of shape (b, 1, t, t) to states (b, 1, h)."""


def is_stock(backbone: nn.Module, layers: str) -> bool:
    """Whether the last of `layers` does what its architecture does, and nobody looks on.

    Parameters
    ----------
    backbone
        A transformers model.
    layers
        Where its list of layers is, such as ``encoder.layer``.

    Returns
    -------
    bool
        False with a hook on the way to the layer or inside of it, a `forward` set on a
        module or its class, a module of another make, or an attention function of one's own.
    """
    way: list[Any] = [backbone]
    for name in layers.split("."):
        way.append(way[-1].get_submodule(name))
    inside = list(way[-1][-1].modules())
    return (
        not _has_any_global_hook()  # type: ignore[no-untyped-call]
        and not any(_is_watched(module) for module in (*way, *inside))
        and all(
            type(module) in TOKENWISE or type(module).forward.__module__.startswith(KNOWN)
            for module in inside
        )
        and _is_known_attention(getattr(backbone, "config", None))
    )


def _is_watched(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
    )


def _is_known_attention(config: Any) -> bool:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = getattr(config, "_attn_implementation", "eager")
    if name not in ALL_ATTENTION_FUNCTIONS:  # written into the model's own file
        return True
    return str(ALL_ATTENTION_FUNCTIONS[name].__module__).startswith(KNOWN)


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
