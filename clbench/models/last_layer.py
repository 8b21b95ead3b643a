"""Compute the last layer for the first token alone, if the pooling reads nothing else.

The other tokens then need only keys and values in the last layer, no query, attention, output
or feed-forward part. The pooled vector is the same up to rounding; a model with six layers saves
a sixth of its work, one with twelve a twelfth (``benchmarks/engine.py``).

A last layer that was changed or is observed (a hook, another `forward` or module) is computed
whole: see `is_stock`.
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
STOCK = ("transformers.", "peft.tuners.lora.", "clbench.training.dropout")
"""Packages whose modules compute what this module assumes."""

LastLayer = Callable[[Any, Tensor, Tensor | None], Tensor]
"""Layer, states of shape (b, t, h) and mask of shape (b, 1, t, t) to states (b, 1, h)."""


def is_stock(backbone: nn.Module, layers: str) -> bool:
    """Whether the last layer computes what its architecture does, and nothing observes it.

    False if there is a hook on the layer, above or inside it, a replaced `forward`, a module from
    another package, or a custom attention function. `layers` is the path of the list of layers,
    such as ``encoder.layer``.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attention = getattr(backbone.config, "_attn_implementation", "eager")
    path: list[Any] = [backbone]
    for name in layers.split("."):
        path.append(path[-1].get_submodule(name))
    inside = list(path[-1][-1].modules())
    return (
        not _has_any_global_hook()  # type: ignore[no-untyped-call]
        and not any(
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or "forward" in vars(module)
            for module in (*path, *inside)
        )
        and all(
            type(module) in TOKENWISE or type(module).forward.__module__.startswith(STOCK)
            for module in inside
        )
        and (  # an attention that is not registered is part of the model's own code
            attention not in ALL_ATTENTION_FUNCTIONS
            or ALL_ATTENTION_FUNCTIONS[attention].__module__.startswith(STOCK)
        )
    )


@contextmanager
def only_first_token(layer: nn.Module, forward: LastLayer) -> Iterator[None]:
    """Make `layer` compute `forward` inside the context.

    It computes every token if the mask is not a dense tensor, as with some attention kernels, or
    if gradient checkpointing runs the layer again in the backward pass.
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
    """Compute a layer of BERT, RoBERTa or ELECTRA, normalised after its two parts."""
    own = layer.attention.self
    first = _first(states)
    context = _attend(own, (own.query(first), own.key(states), own.value(states)), mask)
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(context, first))
    return output


def distilbert_layer(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """Compute a layer of DistilBERT."""
    own = layer.attention
    first = _first(states)
    context = _attend(own, (own.q_lin(first), own.k_lin(states), own.v_lin(states)), mask)
    attended = layer.sa_layer_norm(own.out_lin(context) + first)
    output: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
    return output


def _first(states: Tensor) -> Tensor:
    """Return the first token's states, shape (b, 1, h), contiguous.

    On a strided tensor, under torch's dispatch modes, a dense layer adds its bias in another
    order, which changes the last bits.
    """
    return states[:, :1].contiguous()


def _attend(own: Any, parts: tuple[Tensor, Tensor, Tensor], mask: Tensor | None) -> Tensor:
    """Return the first token's attention, shape (b, 1, h); `parts` are query, keys and values."""
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
    context: Tensor = torch.matmul(weights, value).transpose(1, 2).flatten(2)
    return context
