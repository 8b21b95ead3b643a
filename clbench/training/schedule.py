"""Learning-rate schedules over the steps of a stage."""

from __future__ import annotations

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


def rate_factor(step: int, *, kind: str, warmup_steps: int, steps: int) -> float:
    """Factor on the rate at a step.

    Linear warm-up from 0 to 1, then a half cosine or a line down to 0 at the end, or 1
    throughout (Kenneweg et al. 2022, section 4.3: cosine, 10 % warm-up).

    Parameters
    ----------
    step
        Number of the step, from 0.
    kind
        ``cosine``, ``linear`` or ``constant``.
    warmup_steps, steps
        Length of the warm-up and of the whole.
    """
    if step < warmup_steps:
        return step / warmup_steps
    if kind == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return 1.0 - progress if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


def warming(share: float, steps: int) -> int:
    """How many of `steps` warm up: their share, rounded up, but never the last one.

    A first step of a warm-up has the rate 0, so a stage of one step would not train.
    """
    return min(math.ceil(share * steps), steps - 1)


def make_schedule(optimizer: Optimizer, kind: str, warmup: float, steps: int) -> LRScheduler:
    """A scheduler to be stepped after every optimizer step.

    Parameters
    ----------
    optimizer
        Its groups keep their proportions.
    kind
        ``cosine``, ``linear`` or ``constant``.
    warmup
        Share of `steps` that warm up; see `warming`.
    steps
        Steps of the stage or phase.
    """
    factor = partial(rate_factor, kind=kind, warmup_steps=warming(warmup, steps), steps=steps)
    return LambdaLR(optimizer, factor)
