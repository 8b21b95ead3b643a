"""From the last hidden state of every token to one vector a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

Pooling = Literal["auto", "first", "last", "mean"]
Pool = Callable[[Tensor, Tensor | None], Tensor]


def first_token(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The first token's vector ([CLS] and its like); rows are padded on the right.

    Parameters
    ----------
    hidden
        Shape (b, t, h).
    mask
        Shape (b, t), 1 for real tokens; not looked at.

    Returns
    -------
    Tensor
        Shape (b, h).
    """
    return hidden[:, 0]


def last_token(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The vector of each row's last real token, which in a decoder has seen them all.

    Parameters
    ----------
    hidden
        Shape (b, t, h).
    mask
        Shape (b, t), 1 for real tokens; None when all are.

    Returns
    -------
    Tensor
        Shape (b, h).
    """
    if mask is None:
        return hidden[:, -1]
    # The running count of real tokens reaches its maximum first at the last real one.
    last = mask.cumsum(1).argmax(1)
    rows = last[:, None, None].expand(-1, 1, hidden.shape[2])
    return hidden.gather(1, rows).squeeze(1)


def mean_token(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over each row's real tokens, summed in float32.

    Parameters
    ----------
    hidden
        Shape (b, t, h).
    mask
        Shape (b, t), 1 for real tokens; None when all are.

    Returns
    -------
    Tensor
        Shape (b, h), float32.
    """
    if mask is None:
        return hidden.float().mean(1)
    real = mask.to(hidden.device).unsqueeze(2).float()
    return (hidden.float() * real).sum(1) / real.sum(1).clamp(min=1.0)


POOLS: dict[str, Pool] = {"first": first_token, "last": last_token, "mean": mean_token}
