"""A language-model head for a checkpoint that comes without one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import torch
from torch import Tensor, nn

from clbench.fisher.losses import Loss, on_device
from clbench.training.device import Precision

LR = 1e-3
"""Adam's suggested default (Kingma & Ba 2015, Algorithm 1)."""


def fit_head(
    model: nn.Module,
    backbone: Sequence[str],
    batches: Sequence[dict[str, Tensor]],
    loss: Loss,
    *,
    steps: int,
    precision: Precision,
) -> tuple[float, float]:
    """Train what lies above the backbone on the loss of the language model.

    The backbone, and with it a tied vocabulary projection, stays as it is; dropout is off.

    Parameters
    ----------
    model
        Of a language model, on its device.
    backbone
        Names of the weights that are left alone.
    batches
        Gone through again and again.
    loss
        ``masked_lm`` or ``causal_lm`` of `clbench.fisher.losses`.
    steps
        Steps of Adam.
    precision
        Of the forward pass.

    Returns
    -------
    tuple of float
        Mean loss over the first and over the last tenth of the steps.
    """
    frozen = set(backbone)
    parameters = {name: p for name, p in model.named_parameters() if name not in frozen}
    required = {name: p.requires_grad for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    optimizer = torch.optim.Adam(list(parameters.values()), lr=LR)
    device = next(model.parameters()).device
    model.eval()
    losses = []
    for batch in islice(cycle(batches), steps):
        with precision.autocast():
            value = loss(model, on_device(batch, device)).together()
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(value.detach())
    optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(required[name])
    tenth = max(1, steps // 10)
    first, last = torch.stack(losses[:tenth]).mean(), torch.stack(losses[-tenth:]).mean()
    return float(first), float(last)
