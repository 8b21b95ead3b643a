"""Dropout from a stream of its own, and quick on processors.

On the CPU torch draws a mask number by number from its global state, which takes 15 to
20 % of a training step. Here 16 random bits a number come in bulk from a NumPy stream that
the engine seeds for each stage. The drop rate is exact to 1/65536 and the rescaling uses
the rate that is really drawn, so the mean stays unbiased. On other devices torch's own
dropout is as good and stays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LEVELS = 65536
"""Distinct values of the 16 bits that decide about one number."""
ATTENTION = "clbench_stream"
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class MaskStream:
    """Keep-masks from one seeded stream."""

    def __init__(self, seed: int = 0) -> None:
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start the stream anew."""
        self._bits = np.random.SFC64(seed)

    def mask(self, shape: torch.Size, rate: float, dtype: torch.dtype) -> Tensor:
        """Zeros with probability `rate`, elsewhere what makes the mean 1."""
        dropped = round(rate * LEVELS)
        count = math.prod(shape)
        raw = self._bits.random_raw(-(-count // 4)).view(np.int16)
        drawn = torch.from_numpy(raw)[:count].view(shape)
        scale = torch.tensor(LEVELS / (LEVELS - dropped) if dropped < LEVELS else 0.0, dtype=dtype)
        # 1 or 0 times the bits of `scale`: integers stay integers, which is far quicker than
        # by way of bool.
        bits = _INTEGERS[dtype.itemsize]
        kept = drawn.ge_(dropped - LEVELS // 2).to(bits)
        return kept.mul_(int(scale.view(bits))).view(dtype)


class StreamDropout(nn.Module):
    """Takes the place of `torch.nn.Dropout`."""

    def __init__(self, rate: float, stream: MaskStream) -> None:
        super().__init__()
        self.p = rate
        self._stream = stream

    def forward(self, values: Tensor) -> Tensor:
        """`values` while evaluating; randomly thinned and rescaled while training."""
        if not self.training or self.p == 0.0:
            return values
        return values * self._stream.mask(values.shape, self.p, values.dtype)


def install(model: nn.Module, backbone: Any, device: torch.device) -> MaskStream | None:
    """Replace dropout modules, and dropout inside attention where the backbone lets us.

    Parameters
    ----------
    model
        Searched for `torch.nn.Dropout` modules.
    backbone
        A transformers model inside of it; one that runs torch's fused attention changes to
        an attention with the same formula whose dropout comes from the stream.
    device
        Only the CPU gets replaced modules.

    Returns
    -------
    MaskStream or None
        To be seeded at the start of every stage; None where nothing was replaced.
    """
    if device.type != "cpu":
        return None
    stream = MaskStream()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, StreamDropout(child.p, stream).train(child.training))
    if getattr(backbone.config, "_attn_implementation", None) == "sdpa":
        _register_attention()
        backbone.set_attn_implementation(ATTENTION)
        for module in backbone.modules():
            module._clbench_stream = stream
    return stream


def _register_attention() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention over (b, heads, t, d); torch's fused one wherever there is nothing to drop."""
    stream = getattr(module, "_clbench_stream", None)
    special = options.get("position_bias") is not None or key.shape[1] != query.shape[1]
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", False) if causal is None else causal
    if dropout == 0.0 or stream is None or special:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        fused: tuple[Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            **options,
        )
        return fused
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query * scale, key.transpose(2, 3))
    if attention_mask is None and causal and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            # Added, the mask costs nothing on the way back; half the range cannot overflow.
            lowest = torch.finfo(scores.dtype).min / 2
            attention_mask = torch.zeros_like(attention_mask, dtype=scores.dtype).masked_fill_(
                ~attention_mask, lowest
            )
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=scores.dtype)
    weights = weights * stream.mask(weights.shape, dropout, weights.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None
