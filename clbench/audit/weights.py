"""The weights of two models: how far apart they are, and mixtures that undo forgetting."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from clbench.audit.changes import UNCHANGED, Change, Flips, judge
from clbench.audit.items import (
    Bools,
    Floats,
    Items,
    Part,
    has_head_for,
    hits,
    length_of,
    load_items,
)
from clbench.audit.models import (
    AuditedModel,
    are_placeholders,
    load_base,
    load_tuned,
    same_names,
)
from clbench.core.errors import SettingsError
from clbench.models.families import family_of
from clbench.models.groups import LayerGroup, depth_positions, layer_groups_of
from clbench.results.fronts import front
from clbench.training.device import resolve_device

BATCH = 32
MOST_TOKENS = 4000
"""Most tokens at which hidden states are compared."""


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
    parts: list[list[torch.Tensor]] = []
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


DEPTHS = ("embeddings", "lower layers", "middle layers", "upper layers")
"""Parts of a model by depth; the last one has all that is behind the layers, too."""


@dataclass(frozen=True)
class Mixture:
    """Weights between those of two models: base + α · trimmed change.

    Attributes
    ----------
    alpha
        The share of the change, for all weights.
    groups
        Other shares, by one of `DEPTHS` or the name of a group of layers.
    largest
        Share of each tensor's entries whose change is kept, the largest ones; 1 keeps all (the
        trimming of TIES merging, Yadav et al. 2023, section 3).
    """

    alpha: float
    groups: tuple[tuple[str, float], ...] = ()
    largest: float = 1.0

    def with_group(self, name: str, alpha: float) -> "Mixture":
        """Return the mixture with another share for a group of layers."""
        shares = {**dict(self.groups), name: alpha}
        return replace(self, groups=tuple((n, a) for n, a in shares.items() if a != self.alpha))

    def __str__(self) -> str:
        parts = [f"α = {self.alpha:g}"]
        parts += [f"{name}: {value:g}" for name, value in self.groups]
        if self.largest < 1.0:
            parts.append(f"largest {self.largest:.0%} of the changes")
        return ", ".join(parts)


TUNED, BASE = Mixture(1.0), Mixture(0.0)


class Mixer:
    """Sets the weights of a tuned model to mixtures with those of its base."""

    def __init__(self, base: AuditedModel, tuned: AuditedModel) -> None:
        own, theirs = (dict(m.backbone.named_parameters()) for m in (tuned, base))
        pairs = {name: (own[name], theirs[name]) for name in own if name in theirs}
        named = [m.classes for m in (base, tuned) if not are_placeholders(m.classes)]
        same = len(named) < 2 or named[0] == named[1] or same_names(*named) is not None
        if base.head == tuned.head and same:  # and so the weights of the same head
            inside = {id(value) for value in own.values()}
            others = dict(base.model.named_parameters())
            for name, value in tuned.model.named_parameters():
                if id(value) not in inside and getattr(others.get(name), "shape", 0) == value.shape:
                    pairs[f"head: {name}"] = value, others[name]
        self._weights = [
            (name, target, start, target.detach().clone())
            for name, (target, start) in pairs.items()
        ]
        groups = groups_of(tuned)
        depth = sum(group.name.startswith("layer.") for group in groups)
        position = depth_positions(depth, len(DEPTHS) + 1) | {"final": len(DEPTHS) - 1}
        self._groups = {
            name: (group.name, DEPTHS[position[group.name]])
            for group in groups
            for name in group.parameters
        }

    @torch.no_grad()
    def apply(self, mixture: Mixture) -> None:
        """Set the weights."""
        shares = dict(mixture.groups)
        for name, target, start, tuned in self._weights:
            names = self._groups.get(name, ())
            alpha = next((shares[n] for n in names if n in shares), mixture.alpha)
            value = tuned
            if alpha != 1.0 or mixture.largest != 1.0:
                base = start.to(tuned.device)
                change = tuned - base
                if mixture.largest < 1.0:
                    change = largest(change, mixture.largest)
                value = base + alpha * change
            target.copy_(value)

    @contextmanager
    def mixed(self, mixture: Mixture) -> Iterator[None]:
        """Set the weights inside the block."""
        try:
            self.apply(mixture)
            yield
        finally:
            self.apply(TUNED)


def largest(change: torch.Tensor, share: float) -> torch.Tensor:
    """Return a tensor with its largest entries alone, 0 elsewhere."""
    count = max(1, round(share * change.numel()))
    smallest = change.abs().flatten().kthvalue(change.numel() - count + 1).values
    return torch.where(change.abs() >= smallest, change, 0.0)


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
    """A mixture and its scores on the rows of the sweep: mean accuracies."""

    mixture: Mixture
    kept: float
    learned: float


@dataclass(frozen=True)
class Mended:
    """The result of `mend`.

    Attributes
    ----------
    points
        All mixtures that were tried.
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
    chosen: Mixture
    before: Mapping[str, float]
    after: Mapping[str, float]
    changes: Mapping[str, Change]
    settings: Mapping[str, Any]

    @property
    def front(self) -> list[Point]:
        """The Pareto front of the points, sorted by accuracy learned, lowest first."""
        by_name = {str(point.mixture): point for point in self.points}
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
                {**_plain(p.mixture), "kept": p.kept, "learned": p.learned} for p in self.points
            ],
            "unseen": {
                name: {
                    "tuned": self.before[name],
                    "mended": self.after[name],
                    **change.to_json("word"),
                }
                for name, change in self.changes.items()
            },
        }


def _plain(mixture: Mixture) -> dict[str, Any]:
    return {**asdict(mixture), "groups": dict(mixture.groups)}


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
    for one part of the layers at a time, starting from the best mixture so far. A task is scored by
    the model's own head if that has its classes (for tasks to keep, the base model's head, too);
    else by a linear probe of the features.

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
    if not keep:
        raise SettingsError("--keep names no task. Name at least one.")
    where = resolve_device(device)
    items = load_items([*keep, learn], data=data, rows=rows, extra=SWEEP_ROWS, seed=seed)
    tell("loading models")
    first = load_base(base)
    second = load_tuned(tuned, first)
    sweeps, finals = zip(*(each.split(SWEEP_ROWS) for each in items), strict=True)
    mixer = Mixer(first, second)
    parts = {each.name: _part(each, first, second) for each in items[:-1]}
    parts[items[-1].name] = _part(items[-1], second, second)
    points: list[Point] = []

    def score(items: Items) -> Bools:
        return hits(second, items, parts[items.name], where)

    def best() -> Point:
        # Equal scores: the mixture that was tried first, and the tuned model before all.
        return max(points, key=lambda p: (round(p.kept + p.learned, 9), p.mixture == TUNED))

    def visit(mixture: Mixture) -> None:
        if mixture not in [point.mixture for point in points]:
            tell(str(mixture))
            with mixer.mixed(mixture):
                scores = [float(score(each).mean()) for each in sweeps]
            points.append(Point(mixture, fmean(scores[:-1]), scores[-1]))

    for alpha in reversed(ALPHAS):
        visit(Mixture(alpha))
    for share in TRIMS:
        visit(Mixture(1.0, largest=share))
    for group in DEPTHS:
        start = best().mixture
        for alpha in GROUP_ALPHAS:
            visit(start.with_group(group, alpha))
    chosen = best().mixture
    tell("scoring on rows that the sweep did not see")
    before = [score(each) for each in finals]
    mixer.apply(chosen)
    after = [score(each) for each in finals]
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
            "scored_by": parts,
        },
    )
    return mended, second


def _part(items: Items, first: AuditedModel, second: AuditedModel) -> Part:
    """Return how a task is scored: by the models' own heads if both have one for it."""
    fits = first.head == second.head and all(has_head_for(m, items) for m in (first, second))
    return "behaviour" if fits else "features"
