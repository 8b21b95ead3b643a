"""Named streams of randomness.

Every random draw comes from a stream whose seed is a digest of the parts of its name, such as
``("order", seed, scenario, stage, epoch)``. No name contains the method, so two methods with one
seed see the same batches and start from the same heads, and their difference is a paired one.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def stream_seed(*parts: str | int) -> int:
    """Return the 63-bit seed of the stream named `parts`, the same on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def numpy_stream(*parts: str | int) -> np.random.Generator:
    """Return a NumPy generator for the stream named `parts`."""
    return np.random.default_rng(stream_seed(*parts))


def torch_stream(*parts: str | int, device: str = "cpu") -> "torch.Generator":
    """Return a torch generator for the stream named `parts`."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(stream_seed(*parts))
    return generator
