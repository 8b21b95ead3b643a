"""Fast dropout on the CPU, from a stream of its own.

On the CPU torch draws a mask number by number from its global state, which takes 15 to 20 % of a
training step. Here a NumPy stream, which the engine seeds for each step, supplies 16 random bits
per number in bulk. The drop rate is exact to 1/65536 and the rescaling uses the rounded rate: the
mean stays unbiased. Other devices keep torch's own dropout.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LEVELS = 65536
"""Number of values that 16 bits can take."""
ATTENTION = "clbench_stream"
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class MaskStream:
    """Keep-masks from one seeded stream."""

    def __init__(self, seed: int = 0) -> None:
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Restart the stream."""
        self._bits = np.random.SFC64(seed)

    def get_state(self) -> Tensor:
        """Return the state of the stream."""
        return torch.from_numpy(self._bits.state["state"]["state"].view(np.int64))

    def set_state(self, state: Tensor) -> None:
        """Continue from a state."""
        numbers = self._bits.state
        numbers["state"]["state"] = state.numpy().view(np.uint64)
        self._bits.state = numbers

    def mask(self, shape: torch.Size, rate: float, dtype: torch.dtype) -> Tensor:
        """Return zeros with probability `rate`, and elsewhere the factor that makes the mean 1."""
        dropped = round(rate * LEVELS)
        count = math.prod(shape)
        raw = self._bits.random_raw(-(-count // 4)).view(np.int16)
        random = torch.from_numpy(raw)[:count].view(shape)
        scale = torch.tensor(LEVELS / (LEVELS - dropped) if dropped < LEVELS else 0.0, dtype=dtype)
        # 1 or 0 times the bits of `scale`, as integers: far faster than through bool.
        integer = _INTEGERS[dtype.itemsize]
        mask = random.ge_(dropped - LEVELS // 2).to(integer)
        return mask.mul_(int(scale.view(integer))).view(dtype)


class StreamDropout(nn.Module):
    """Replaces `torch.nn.Dropout`."""

    def __init__(self, rate: float, stream: MaskStream) -> None:
        super().__init__()
        self.p = rate
        self._stream = stream

    def forward(self, values: Tensor) -> Tensor:
        """Return `values`, in training mode with random ones dropped and the rest rescaled."""
        if not self.training or self.p == 0.0:
            return values
        return values * self._stream.mask(values.shape, self.p, values.dtype)


def install(model: nn.Module, backbone: Any, device: torch.device) -> MaskStream | None:
    """Replace dropout on the CPU; return the stream to seed before every step.

    Replaces the `torch.nn.Dropout` modules of `model`, and the fused attention of `backbone`, a
    transformers model in it, by an attention of the same formula whose dropout comes from the
    stream. On other devices nothing is replaced, and None is returned.
    """
    if device.type != "cpu":
        return None
    stream = MaskStream()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, StreamDropout(child.p, stream).train(child.training))
    if getattr(backbone.config, "_attn_implementation", None) == "sdpa":
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

        AttentionInterface.register(ATTENTION, _attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        backbone.set_attn_implementation(ATTENTION)
        for module in backbone.modules():
            module._clbench_stream = stream
    return stream


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
    """Return attention over (b, heads, t, d); torch's fused one if there is nothing to drop."""
    stream = getattr(module, "_clbench_stream", None)
    special = options.get("position_bias") is not None or key.shape[1] != query.shape[1]
    if dropout == 0.0 or stream is None or special:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        inputs = (module, query, key, value, attention_mask)
        fused: tuple[Tensor, None] = sdpa_attention_forward(
            *inputs, dropout=dropout, scaling=scaling, **options
        )
        return fused
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", False) if causal is None else causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query * scale, key.transpose(2, 3))
    if attention_mask is None and causal and query.shape[2] > 1:
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
    weights = weights * stream.mask(weights.shape, dropout, weights.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None
