"""Mend a tuned model: mix its weights with its base's, and choose the mixture by accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from clbench.audit.changes import UNCHANGED, Bools, Change, Flips, judge
from clbench.audit.drift import groups_of
from clbench.audit.items import (
    FEWEST_ROWS,
    Ints,
    Items,
    answer,
    class_order,
    classify,
    load_items,
    probe,
)
from clbench.audit.models import AuditedModel, load_base, load_tuned
from clbench.core.errors import SettingsError
from clbench.models.groups import depth_positions
from clbench.results.fronts import front
from clbench.training.device import resolve_device

ALPHAS = tuple(i / 10 for i in range(11))
"""Shares of the way from the base model (0) to the tuned one (1)."""
GROUP_ALPHAS = (0.0, 0.5, 1.0)
"""Shares that are tried for one group of layers while the others keep theirs."""
TRIMS = (0.05, 0.2, 0.5)
"""Shares of the change of each weight tensor that trimming keeps, the largest entries."""
SWEEP_ROWS = 200
MARGIN = 0.02


@dataclass(frozen=True)
class Point:
    """A recipe and its scores on the rows of the sweep: mean accuracies."""

    recipe: Recipe
    kept: float
    learned: float


@dataclass(frozen=True)
class Mended:
    """The result of `mend`.

    Attributes
    ----------
    points
        All recipes that were tried.
    chosen
        The best of the front, by the mean of both scores; `TUNED` if nothing beats it.
    before, after
        Accuracies of the tuned and the mended model by task, on rows that the sweep did not see.
    changes
        Mended minus tuned by task, on these rows, judged together.
    """

    base: str
    tuned: str
    keep: tuple[str, ...]
    learn: str
    points: tuple[Point, ...]
    chosen: Recipe
    before: Mapping[str, float]
    after: Mapping[str, float]
    changes: Mapping[str, Change]
    settings: Mapping[str, Any]

    @property
    def front(self) -> list[Point]:
        """The Pareto front of the points, sorted by accuracy learned, lowest first."""
        by_name = {str(point.recipe): point for point in self.points}
        best = front({name: (p.learned, p.kept) for name, p in by_name.items()})
        return [by_name[name] for name in best]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``mend.json``."""
        return {
            "format": "clbench-mend",
            "schema_version": 1,
            "base": self.base,
            "tuned": self.tuned,
            "keep": list(self.keep),
            "learn": self.learn,
            "settings": dict(self.settings),
            "chosen": _plain(self.chosen),
            "points": [
                {**_plain(p.recipe), "kept": p.kept, "learned": p.learned} for p in self.points
            ],
            "unseen": {
                name: {
                    "tuned": self.before[name],
                    "mended": self.after[name],
                    **asdict(change),
                }
                for name, change in self.changes.items()
            },
        }


def _plain(recipe: Recipe) -> dict[str, Any]:
    return {"alpha": recipe.alpha, "groups": dict(recipe.groups), "largest": recipe.keep}


def mend(
    base: str,
    tuned: str,
    *,
    keep: Sequence[str],
    learn: str,
    data: str | Path | None = None,
    rows: int = 500,
    device: str = "auto",
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Mended, AuditedModel]:
    """Return the best weights between a base model and one tuned from it, and what they score.

    Tries the `ALPHAS` for all weights, then the largest changes alone (`TRIMS`), then other shares
    for one group of layers at a time, starting from the best recipe so far. A task is scored by the
    model's own head if that has its classes, and for tasks to keep the base model's head, too; else
    by a linear probe of the features.

    Parameters
    ----------
    base, tuned
        As in `clbench.audit.audit.audit`; an adapter is merged.
    keep, learn
        Tasks that the base model can do, and the task that the tuned model learned.
    data, device, seed, tell
        As in `clbench.audit.audit.audit`.
    rows
        Most rows of each task for the final scores; the sweep has 200 others.

    Returns
    -------
    Mended
        The points, the choice, and its scores.
    AuditedModel
        The tuned model with the weights that were chosen.

    Raises
    ------
    ClbenchError
        As `clbench.audit.audit.audit`; if a task is both to keep and to learn; or if it has too
        few rows.
    """
    if learn in keep or len(set(keep)) < len(keep):
        raise SettingsError(
            f"--keep {','.join(keep)} --learn {learn}: name each task only once, in one of the two."
        )
    if rows < FEWEST_ROWS:
        raise SettingsError(f"--rows {rows}: must be {FEWEST_ROWS} or more.")
    if not keep:
        raise SettingsError("--keep names no task. Name at least one.")
    where, folder = resolve_device(device), None if data is None else Path(data)
    count = rows + SWEEP_ROWS
    items = list(load_items([*keep, learn], data=folder, count=count, seed=seed))
    tell("loading models")
    first = load_base(base)
    second = load_tuned(tuned, first)
    sweeps, finals = zip(*(each.split(SWEEP_ROWS) for each in items), strict=True)
    mixer = Mixer(first, second)
    scorer = _Scorer(first, second, learn, where)
    points: list[Point] = []

    def best() -> Point:
        # Equal scores: the recipe that was tried first, and the tuned model before all.
        return max(points, key=lambda p: (round(p.kept + p.learned, 9), p.recipe == TUNED))

    def visit(recipe: Recipe) -> None:
        if recipe not in [point.recipe for point in points]:
            tell(str(recipe))
            with mixer.mixed(recipe):
                hits = [float(scorer.hits(each).mean()) for each in sweeps]
            points.append(Point(recipe, fmean(hits[:-1]), hits[-1]))

    for alpha in reversed(ALPHAS):
        visit(Recipe(alpha))
    for share in TRIMS:
        visit(Recipe(1.0, keep=share))
    for group in GROUPS:
        start = best().recipe
        for alpha in GROUP_ALPHAS:
            visit(start.with_group(group, alpha))
    chosen = best().recipe
    tell("scoring on rows that the sweep did not see")
    before = [scorer.hits(each) for each in finals]
    mixer.apply(chosen)
    after = [scorer.hits(each) for each in finals]
    samples = {
        each.name: UNCHANGED if chosen == TUNED else Flips.of(one, two).sample()
        for each, one, two in zip(finals, before, after, strict=True)
    }
    names = [each.name for each in finals]
    mended = Mended(
        base,
        tuned,
        tuple(names[:-1]),
        names[-1],
        tuple(points),
        chosen,
        {name: float(hit.mean()) for name, hit in zip(names, before, strict=True)},
        {name: float(hit.mean()) for name, hit in zip(names, after, strict=True)},
        judge(samples, MARGIN),
        {
            "rows": {each.name: len(each.rows) for each in finals},
            "sweep_rows": {each.name: len(each.rows) for each in sweeps},
            "seed": seed,
            "scored_by": {each.name: scorer.part(each) for each in finals},
        },
    )
    return mended, second


@dataclass(frozen=True)
class _Scorer:
    """Scores the tuned model as it is."""

    base: AuditedModel
    tuned: AuditedModel
    learn: str
    device: torch.device

    def part(self, items: Items) -> str:
        """Return how a task is scored."""
        head = self.tuned if items.name == self.learn else self.base
        if head.answers and self.tuned.answers:
            return "behaviour"
        orders = [class_order(m, items, generic=True) for m in (head, self.tuned)]
        return "features" if None in orders else "behaviour"

    def hits(self, items: Items) -> Bools:
        """Return which rows the model gets right, shape (n,)."""
        predicted: Ints
        if self.part(items) == "features":
            predicted = probe(self.tuned, items, self.device)
        elif self.tuned.answers:
            predicted = answer(self.tuned, items, self.device)
        else:
            order = class_order(self.tuned, items, generic=True)
            predicted = classify(self.tuned, items, order or [], self.device)
        right: Bools = predicted == items.rows.labels
        return right


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
