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

from clbench.training.attention import replace_attention

LEVELS = 65536
"""Number of values that 16 bits can take."""
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
    transformers model in it, by `clbench.training.attention`, whose dropout comes from the stream.
    On other devices nothing is replaced, and None is returned.
    """
    if device.type != "cpu":
        return None
    stream = MaskStream()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, StreamDropout(child.p, stream).train(child.training))
    replace_attention(backbone, stream)
    return stream
