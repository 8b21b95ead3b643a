"""Named streams of randomness.

Every random draw belongs to a stream whose seed is a digest of its name parts, such as
``("order", seed, scenario, stage, epoch)``. No stream is named after the method, so two
methods on one seed see the same batches and start from the same heads, and their
difference is a paired difference.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def stream_seed(*parts: str | int) -> int:
    """A 63-bit seed for the stream of that name; equal parts give equal seeds anywhere."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def numpy_stream(*parts: str | int) -> np.random.Generator:
    """A NumPy generator for the stream of that name."""
    import numpy as np

    return np.random.default_rng(stream_seed(*parts))


def torch_stream(*parts: str | int, device: str = "cpu") -> torch.Generator:
    """A torch generator for the stream of that name."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(stream_seed(*parts))
    return generator
