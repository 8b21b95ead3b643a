"""Mixtures of a base model's weights and those of a model tuned from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clbench.audit.drift import groups_of
from clbench.audit.models import AuditedModel
from clbench.models.groups import depth_positions

GROUPS = ("embeddings", "lower layers", "middle layers", "upper layers")
"""Groups of layers with a share of their own; the upper ones with all that is behind them."""


@dataclass(frozen=True)
class Recipe:
    """How weights are made of base and tuned ones: base + α · trimmed change.

    Attributes
    ----------
    alpha
        The share of the change, for all weights.
    groups
        Other shares, by group of layers.
    keep
        Share of each tensor's entries whose change is kept, the largest ones; 1 keeps all (the
        trimming of TIES merging, Yadav et al. 2023, section 3).
    """

    alpha: float
    groups: tuple[tuple[str, float], ...] = ()
    keep: float = 1.0

    def with_group(self, name: str, alpha: float) -> Recipe:
        """Return the recipe with another share for a group of layers."""
        shares = {**dict(self.groups), name: alpha}
        return replace(self, groups=tuple((n, a) for n, a in shares.items() if a != self.alpha))

    def __str__(self) -> str:
        parts = [f"α = {self.alpha:g}"]
        parts += [f"{name}: {value:g}" for name, value in self.groups]
        if self.keep < 1.0:
            parts.append(f"largest {self.keep:.0%} of the changes")
        return ", ".join(parts)


TUNED, BASE = Recipe(1.0), Recipe(0.0)


class Mixer:
    """Sets the weights of a tuned model to mixtures with those of its base."""

    def __init__(self, base: AuditedModel, tuned: AuditedModel) -> None:
        own, theirs = (dict(m.backbone.named_parameters()) for m in (tuned, base))
        self._targets = own
        self._base = {name: theirs[name].detach().clone() for name in own if name in theirs}
        if base.head == tuned.head:  # and so the weights of the same head
            inside = {id(value) for value in own.values()}
            others = dict(base.model.named_parameters())
            for name, value in tuned.model.named_parameters():
                if id(value) not in inside and getattr(others.get(name), "shape", 0) == value.shape:
                    self._targets[f"head: {name}"] = value
                    self._base[f"head: {name}"] = others[name].detach().clone()
        self._tuned = {name: self._targets[name].detach().clone() for name in self._base}
        groups = groups_of(tuned)
        depth = sum(group.name.startswith("layer.") for group in groups)
        position = depth_positions(depth, len(GROUPS) + 1) | {"final": len(GROUPS) - 1}
        self._group = {
            name: GROUPS[position[group.name]] for group in groups for name in group.parameters
        }

    @torch.no_grad()
    def apply(self, recipe: Recipe) -> None:
        """Set the weights."""
        shares = dict(recipe.groups)
        for name, start in self._base.items():
            change = self._tuned[name] - start
            if recipe.keep < 1.0:
                change = largest(change, recipe.keep)
            alpha = shares.get(self._group.get(name, ""), recipe.alpha)
            value = self._tuned[name] if alpha == recipe.keep == 1.0 else start + alpha * change
            self._targets[name].copy_(value)

    @contextmanager
    def mixed(self, recipe: Recipe) -> Iterator[None]:
        """Set the weights inside the block."""
        try:
            self.apply(recipe)
            yield
        finally:
            self.apply(TUNED)


def largest(change: Tensor, share: float) -> Tensor:
    """Return a tensor with its largest entries alone, 0 elsewhere."""
    count = max(1, round(share * change.numel()))
    smallest = change.abs().flatten().kthvalue(change.numel() - count + 1).values
    return torch.where(change.abs() >= smallest, change, 0.0)
