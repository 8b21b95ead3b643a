"""Attention on the CPU: dropout from a stream, fast products in bf16, and packed rows.

In bf16 on the CPU, the backward pass of torch's fused attention takes several times as long as that
of the products that it fuses; these round scores to bf16 before the softmax. A packed sequence of
many rows is divided into its rows here, so that its cost does not grow with the square of its
length.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from clbench.models.packing import ATTENTION, ROWS, RowGroup

LONGEST = 512
"""Most tokens of a row for plain products in bf16, whose memory grows with the square of it."""


class Masks(Protocol):
    """A source of masks of dropout."""

    def mask(self, shape: torch.Size, rate: float, dtype: torch.dtype) -> Tensor:
        """Return zeros with probability `rate`, and elsewhere the factor that makes the mean 1."""


def replace_attention(backbone: Any, masks: Masks) -> None:
    """Replace the fused attention of a transformers model; dropout comes from `masks`.

    A model with another attention is left as it is.
    """
    if getattr(backbone.config, "_attn_implementation", None) != "sdpa":
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    backbone.set_attn_implementation(ATTENTION)
    for module in backbone.modules():
        module._clbench_masks = masks


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention, shape (b, t, heads, d), over inputs of shape (b, heads, t, d).

    With groups of packed rows among `options`, each row of the one sequence attends to itself only.
    """
    groups: list[RowGroup] | None = options.pop(ROWS, None)
    if groups is None:
        return _attend(module, query, key, value, attention_mask, **options), None
    sizes = [len(group.places) for group in groups]
    dtype = _dtype(query)
    parts = [
        torch.split(states[0].transpose(0, 1).to(dtype), sizes) for states in (query, key, value)
    ]
    outputs = [
        group.unpad(_attend(module, group.pad(q), group.pad(k), group.pad(v), None, **options))
        for group, q, k, v in zip(groups, *parts, strict=True)
    ]
    return torch.cat(outputs)[None], None


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> Tensor:
    masks: Masks | None = getattr(module, "_clbench_masks", None) if dropout else None
    if options.get("position_bias") is not None or not (masks or _is_slow(query, key)):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        inputs = (module, query, key, value, attention_mask)
        fused: Tensor = sdpa_attention_forward(
            *inputs, dropout=dropout, scaling=scaling, **options
        )[0]
        return fused
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", False) if causal is None else causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows, heads, length, width = query.shape
    groups = key.shape[1]
    # Query heads that share keys and values become further rows of their products.
    together = (query * scale).reshape(rows, groups, -1, width)
    scores = torch.matmul(together, key.transpose(2, 3)).view(rows, heads, length, -1)
    if attention_mask is None and causal and length > 1:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            # Adding a mask costs nothing in the backward pass; half the range cannot overflow.
            lowest = torch.finfo(scores.dtype).min / 2
            attention_mask = torch.zeros_like(attention_mask, dtype=scores.dtype).masked_fill_(
                ~attention_mask, lowest
            )
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=scores.dtype)
    if masks:
        weights = weights * masks.mask(weights.shape, dropout, weights.dtype)
    mixed = torch.matmul(weights.view(rows, groups, -1, weights.shape[-1]), value)
    return mixed.view(rows, heads, length, -1).transpose(1, 2).contiguous()


def _is_slow(query: Tensor, key: Tensor) -> bool:
    """Whether torch's fused attention is slower than plain products."""
    trains = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    return trains and _dtype(query) == torch.bfloat16 and query.shape[2] <= LONGEST


def _dtype(states: Tensor) -> torch.dtype:
    """Return the number format of products of `states`."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
