"""Where a tuned model differs from its base: weights and hidden states, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clbench.audit.items import length_of
from clbench.audit.models import AuditedModel
from clbench.models.families import family_of
from clbench.models.groups import LayerGroup, layer_groups_of

BATCH = 32
MOST_TOKENS = 4000
"""Most tokens at which hidden states are compared."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """How far one group of layers has moved.

    Attributes
    ----------
    name
        ``embeddings``, ``layer.0`` and so on, or ``final``.
    weights
        ‖tuned − base‖ / ‖base‖ over all its weights.
    similarity
        Linear CKA of the hidden states behind it, 1 for equal ones.
    """

    name: str
    weights: float
    similarity: float


def groups_of(model: AuditedModel) -> list[LayerGroup]:
    """Return the groups of layers of a model's backbone that have weights, from the bottom up.

    Weights behind the last layer, such as a final norm, are ``final``; poolers are left out.
    """
    groups = []
    for name, parameters in layer_groups_of(model.backbone, family_of(model.backbone), ""):
        used = tuple(each for each in parameters if "pooler" not in each.split("."))
        if used:
            groups.append(LayerGroup("final" if name == "head" else name, used))
    return groups


def drift(
    base: AuditedModel, tuned: AuditedModel, texts: Sequence[str], device: torch.device
) -> list[Drift]:
    """Return how far each group of layers has moved.

    Hidden states are compared at the same tokens of `texts`.
    """
    first, second = (_hidden_states(model, texts, device) for model in (base, tuned))
    own = dict(base.backbone.named_parameters())
    theirs = dict(tuned.backbone.named_parameters())
    groups = groups_of(base)
    layers = sum(group.name.startswith("layer.") for group in groups)
    result = []
    for group in groups:
        change = size = 0.0
        for name in group.parameters:
            value, other = own[name].detach().double(), theirs[name].detach().double()
            change += float((other - value).square().sum())
            size += float(value.square().sum())
        after = len(first) - 1
        if group.name == "embeddings":
            after = 0
        elif group.name != "final" and layers == len(first) - 1:  # not ALBERT, which shares them
            after = int(group.name.removeprefix("layer.")) + 1
        moved = (change / size) ** 0.5 if size else 0.0
        result.append(Drift(group.name, moved, cka(first[after], second[after])))
    return result


def cka(first: Floats, second: Floats) -> float:
    """Return the linear centred kernel alignment of two representations of the same tokens.

    Kornblith et al. 2019, equation of linear CKA in section 3: ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) in Frobenius
    norms, of columns with mean 0.

    Parameters
    ----------
    first, second
        Shapes (n, a) and (n, b).
    """
    x, y = first - first.mean(0), second - second.mean(0)
    own = float(np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    if own == 0.0:
        return 1.0 if np.array_equal(x, y) else 0.0
    return float(np.linalg.norm(y.T @ x) ** 2) / own


def _hidden_states(model: AuditedModel, texts: Sequence[str], device: torch.device) -> list[Floats]:
    """Return the hidden states behind the embeddings and each layer, shape (tokens, h) each."""
    backbone = model.backbone.to(device).eval()
    options = family_of(model.backbone).options
    parts: list[list[Tensor]] = []
    tokens = 0
    for start in range(0, len(texts), BATCH):
        batch = model.tokenizer(
            list(texts[start : start + BATCH]),
            padding=True,
            truncation=True,
            max_length=length_of(model),
            return_tensors="pt",
        ).to(device)
        real = batch["attention_mask"].bool()
        with torch.inference_mode():
            states = backbone(**batch, output_hidden_states=True, **options).hidden_states
        parts.append([state[real].float().cpu() for state in states])
        tokens += int(real.sum())
        if tokens >= MOST_TOKENS:
            break
    return [torch.cat(layer)[:MOST_TOKENS].double().numpy() for layer in zip(*parts, strict=True)]


@contextmanager
def put_back(tuned: AuditedModel, base: AuditedModel, group: LayerGroup) -> Iterator[None]:
    """Give the tuned model the base model's weights of a group of layers inside the block."""
    own = dict(tuned.backbone.named_parameters())
    theirs = dict(base.backbone.named_parameters())
    saved = {name: own[name].detach().clone() for name in group.parameters}
    try:
        with torch.no_grad():
            for name in group.parameters:
                own[name].copy_(theirs[name])
        yield
    finally:
        with torch.no_grad():
            for name, value in saved.items():
                own[name].copy_(value)
