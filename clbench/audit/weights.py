"""The weights of two models: how far apart they are, mixtures of them, and scaled adapters."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from clbench.audit.items import length_of
from clbench.audit.models import AuditedModel, are_placeholders, load_tuned, same_names
from clbench.audit.scores import Floats
from clbench.core.errors import ModelError, named
from clbench.methods.selection import largest
from clbench.models import locate
from clbench.models.folder import ADAPTER, ADAPTER_WEIGHTS
from clbench.models.groups import LayerGroup, depth_positions, layer_groups_of

BATCH = 32
MOST_TOKENS = 4000
"""Most tokens at which hidden states are compared."""
FACTOR = re.compile(r"\.lora_(embedding_)?([AB])(\.weight)?$")
"""What stands behind the name of a module for each factor of the product B · A."""
TOLERANCE = 1e-4
"""Largest relative difference between scaled and mixed weights, which round differently."""


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
        Linear CKA of the hidden states behind it, 1 for equal ones; of an encoder-decoder, those of
        the encoder.
    """

    name: str
    weights: float
    similarity: float


def groups_of(model: AuditedModel) -> list[LayerGroup]:
    """Return the groups of layers of a model's backbone that have weights, from the bottom up.

    Weights behind the last layer, such as a final norm, are ``final``; poolers are left out.
    """
    groups = []
    for name, parameters in layer_groups_of(model.backbone, model.family, ""):
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
    first, second = (_hidden_states(m, base.tokenizer, texts, device) for m in (base, tuned))
    own = dict(base.backbone.named_parameters())
    theirs = dict(tuned.backbone.named_parameters())
    groups = groups_of(base)
    layers = sum(group.name.startswith("layer.") for group in groups)
    result = []
    for group in groups:
        change = size = 0.0
        for name in group.parameters:
            pair = own[name], theirs[name]
            value, other = (each.detach().cpu().double() for each in pair)  # MPS has no float64
            change += float((other - value).square().sum())
            size += float(value.square().sum())
        after = len(first) - 1  # also behind the layers of ALBERT, which share weights
        if group.name == "embeddings":
            after = 0
        elif group.name != "final" and (base.is_encoder_decoder or layers == after):
            after = min(int(group.name.removeprefix("layer.")) + 1, after)
        moved = (change / size) ** 0.5 if size else 0.0
        result.append(Drift(group.name, moved, cka(first[after], second[after])))
    return result


def same_if_rounded(one: AuditedModel, other: AuditedModel) -> str | None:
    """Return the format, such as ``bfloat16``, to which the weights of two models round alike.

    None if they differ then, too, or are equal in float32.
    """
    values, others = one.model.state_dict(), other.model.state_dict()
    if values.keys() != others.keys():
        return None
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        rounded = ((v.cpu().to(kind), others[name].cpu().to(kind)) for name, v in values.items())
        if all(torch.equal(*pair) for pair in rounded):
            return None if kind == torch.float32 else str(kind).removeprefix("torch.")
    return None


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


def _hidden_states(
    model: AuditedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    device: torch.device,
) -> list[Floats]:
    """Return the hidden states behind the embeddings and each layer, shape (tokens, h) each."""
    encoder = model.encoder.to(device).eval()
    options = model.family.options
    parts: list[list[torch.Tensor]] = []
    tokens = 0
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(
            list(texts[start : start + BATCH]),
            padding=True,
            truncation=True,
            max_length=length_of(model),
            return_tensors="pt",
        ).to(device)
        real = batch["attention_mask"].bool()
        with torch.inference_mode():
            states = encoder(**batch, output_hidden_states=True, **options).hidden_states
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
        if base.head == tuned.head and (len(named) < 2 or same_names(*named) is not None):
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

    def share(self, weight: torch.Tensor, mixture: Mixture) -> float:
        """Return the share α that a weight of the tuned model has in a mixture."""
        found = (n for n, target, *_ in self._weights if target is weight)
        return 1.0 if (name := next(found, None)) is None else self._alpha(name, mixture)

    def _alpha(self, name: str, mixture: Mixture) -> float:
        shares = dict(mixture.groups)
        names = self._groups.get(name, ())
        return next((shares[n] for n in names if n in shares), mixture.alpha)

    @torch.no_grad()
    def apply(self, mixture: Mixture) -> None:
        """Set the weights."""
        for name, target, start, tuned in self._weights:
            alpha = self._alpha(name, mixture)
            value = tuned
            if alpha != 1.0 or mixture.largest < 1.0:
                base = start.to(tuned.device)
                change = tuned - base
                if mixture.largest < 1.0:
                    change = torch.where(largest(change, mixture.largest), change, 0.0)
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


def is_scalable(folder: Path, merged: AuditedModel) -> bool:
    """Whether an adapter adds products of two matrices to weights, and else has whole weights."""
    weights = dict(merged.model.named_parameters())
    keys = load_file(folder / ADAPTER_WEIGHTS).keys()
    return any(map(FACTOR.search, keys)) and all(_weight(key) in weights for key in keys)


def _weight(key: str) -> str:
    """Return the name of the weight that a tensor of an adapter changes or replaces."""
    return FACTOR.sub(".weight", key.removeprefix("base_model.model."))


def write_scaled(
    name: str, base: AuditedModel, mixer: Mixer, mixture: Mixture, model: AuditedModel, out: Path
) -> None:
    """Write the adapter `name` with the shares of a mixture, which `model` has merged, into `out`.

    base + α · (tuned − base) is the adapter with α times its product, and with whole weights, such
    as those of a head, as mixed. It is read again. Raises a ModelError if that is not the mixture.
    """
    folder = locate.adapter_folder(name)
    assert folder is not None
    mixed = dict(model.model.named_parameters())
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    for key, value in tensors.items():
        weight = mixed[_weight(key)]
        factor = FACTOR.search(key)
        if factor is None:
            tensors[key] = weight.detach().cpu().clone()
        elif factor[2] == "B":
            tensors[key] = value.float() * mixer.share(weight, mixture)
    save_file(tensors, out / ADAPTER_WEIGHTS, {"format": "pt"})
    shutil.copyfile(folder / ADAPTER, out / ADAPTER)
    again = load_tuned(str(out), base).model.state_dict()
    for key, value in model.model.state_dict().items():
        if not torch.allclose(again[key], value.cpu(), rtol=TOLERANCE, atol=TOLERANCE / 10):
            raise ModelError(
                f"model {name!r}: its adapter, scaled, is not the mixture that was scored ({key} "
                f"differs). Use {named('merge', True)}."
            )
