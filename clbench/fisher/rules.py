"""Squares of per-example gradients out of what goes into a layer and comes back to it.

The gradient of a layer's weight is a sum over tokens of products of what entered the layer
and the loss gradient at its output. Kept apart by example these are small; the gradients
themselves are formed one example and a part of a matrix at a time, and only their squares
are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

TILE = (768, 512)
"""Rows and columns of a gradient formed at a time on processors: they stay in the cache, and
products of few tokens with wide rows would be slow."""
TOGETHER = 4
"""Examples in a product in bf16, where a single one is too small to be divided among cores."""
CHUNK_ACCELERATOR = 1 << 25
"""Numbers of gradients formed at a time on accelerators."""
PAIRED = 3
"""Up to so many tokens processors multiply the square out, which needs no gradient at all."""
ROWS = 2048
"""Rows of a weight whose squares are multiplied out at a time."""
LEFT = 0.02
"""If less than this share is left of the tokens' own squares where those of pairs are added, they
are computed again in double precision, as digits were lost."""


@dataclass(frozen=True)
class Outer:
    """Gradients ``leftᵀ right`` of shape (o, i); `left` (b, t, o), `right` (b, t, i)."""

    left: Tensor
    right: Tensor

    def at(self, places: Tensor | None) -> Outer:
        """Of these tokens only, shape (b, m); None stands for all."""
        if places is None:
            return self
        left, right = (
            values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))
            for values in (self.left, self.right)
        )
        return Outer(left, right)


@dataclass(frozen=True)
class Rows:
    """Gradients that are zero but for some rows; `ids` (b, t), `values` (b, t, i)."""

    ids: Tensor
    values: Tensor


@dataclass(frozen=True)
class Whole:
    """Gradients as they are; `values` (b, *shape)."""

    values: Tensor


Part = Outer | Rows | Whole
"""What one use of a weight adds to its gradient, example by example."""


def add_squares(total: Tensor, parts: Sequence[Part]) -> None:
    """Add to `total` the sum over examples of the squared gradient.

    Parameters
    ----------
    total
        Of the weight's shape, float32.
    parts
        One for each use of the weight in the pass; they are added before squaring.
    """
    outer = _joined([part for part in parts if isinstance(part, Outer)])
    rows = _joined_rows([part for part in parts if isinstance(part, Rows)])
    whole = [part.values for part in parts if isinstance(part, Whole)]
    if whole and (outer or rows):
        _add_formed(total, outer, rows, torch.stack(whole).sum(0))
    elif whole:
        total += torch.stack(whole).sum(0).float().square().sum(0)
    else:
        if rows is not None:
            outer = _add_rows(total, rows, outer)
        if outer is not None:
            _add_outer(total, outer)


def _joined(parts: list[Outer]) -> Outer | None:
    """Several uses are one use with more tokens."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return Outer(
        torch.cat([part.left for part in parts], 1), torch.cat([part.right for part in parts], 1)
    )


def _joined_rows(parts: list[Rows]) -> Rows | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return Rows(
        torch.cat([part.ids for part in parts], 1), torch.cat([part.values for part in parts], 1)
    )


def _add_outer(total: Tensor, part: Outer) -> None:
    left, right = part.left, part.right
    if total.device.type == "cpu" and left.shape[1] <= PAIRED:
        _add_multiplied_out(total, left, right)
    elif total.device.type == "cpu":
        for block, gradient in gradients_by_parts(total, left, right):
            block.addcmul_(gradient, gradient)
    else:
        step = max(1, CHUNK_ACCELERATOR // total.numel())
        for start in range(0, len(left), step):
            pick = slice(start, start + step)
            total += torch.bmm(left[pick].transpose(1, 2), right[pick]).float().square_().sum(0)


def _add_multiplied_out(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``(Σ_t l_t r_t)²`` as the sum over pairs of tokens of ``l_s l_t · r_s r_t``."""
    for rows in _slices(len(total), ROWS):
        own, mixed = _products(left[..., rows].float(), right.float())
        if bool((own + mixed < LEFT * own).any()):
            own, mixed = _products(left[..., rows].double(), right.double())
        total[rows] += (own + mixed).clamp_(min=0.0)


def _products(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over examples of ``(l_t r_t)²`` over tokens, and of ``2 l_s l_t r_s r_t`` over pairs."""
    own = left.flatten(0, 1).square().T @ right.flatten(0, 1).square()
    pairs = [(s, t) for t in range(left.shape[1]) for s in range(t)]
    if not pairs:
        return own, torch.zeros(())
    lefts = torch.cat([left[:, s] * left[:, t] for s, t in pairs])
    rights = torch.cat([right[:, s] * right[:, t] for s, t in pairs]).mul_(2.0)
    return own, lefts.T @ rights


def gradients_by_parts(
    total: Tensor, left: Tensor, right: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Gradients ``leftᵀ right`` of all examples, by parts that a processor's cache holds.

    Under autocast they are formed in bf16, as by autograd there (each number rounded by up to
    1 in 256).

    Parameters
    ----------
    total
        Of the weight's shape, (o, i).
    left, right
        As in `Outer`.

    Yields
    ------
    part, gradient : Tensor
        A view of a part of `total`, and there an example's gradient, float32, which is the
        caller's until the next one.
    """
    in_bf16 = left.dtype == right.dtype == torch.bfloat16
    if not in_bf16:
        left, right = left.float(), right.float()
    left = left.transpose(1, 2)
    together = min(len(left), TOGETHER) if in_bf16 else 1
    for rows in _slices(len(total), TILE[0]):
        for columns in _slices(total.shape[1], TILE[1]):
            part = total[rows, columns]
            formed = torch.empty((together, *part.shape), dtype=left.dtype)
            gradients = torch.empty_like(formed, dtype=torch.float32) if in_bf16 else formed
            singly = gradients.unbind(0)
            # All views at once: made one by one they would take as long as small products.
            lefts = torch.split(left[:, rows], together)
            rights = torch.split(right[..., columns], together)
            for some, others in zip(lefts, rights, strict=True):
                count = len(some)
                torch.bmm(some, others, out=formed[:count])
                if in_bf16:
                    gradients[:count].copy_(formed[:count])
                for gradient in singly[:count]:
                    yield part, gradient


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _add_rows(total: Tensor, part: Rows, outer: Outer | None) -> Outer | None:
    """Squares of sparse rows, to which dense gradients of the same weight are added first.

    Returns
    -------
    Outer or None
        What is left of the dense gradients: those rows of those examples are taken out.
    """
    size = len(total)
    examples, tokens = part.ids.shape
    owner = torch.arange(examples, device=part.ids.device)[:, None].expand(-1, tokens)
    pairs, place = torch.unique(owner * size + part.ids, return_inverse=True)
    sums = torch.zeros((len(pairs), total.shape[1]), device=total.device)
    sums.index_add_(0, place.reshape(-1), part.values.float().reshape(-1, total.shape[1]))
    numbers = pairs % size
    if outer is not None:
        bounds = torch.searchsorted(
            pairs, torch.arange(examples + 1, device=pairs.device) * size
        ).tolist()
        for example, (start, end) in enumerate(pairwise(bounds)):
            touched = outer.left[example][:, numbers[start:end]]
            sums[start:end] += (touched.T @ outer.right[example]).float()
        left = outer.left.clone()
        left[pairs // size, :, numbers] = 0.0
        outer = Outer(left, outer.right)
    total.index_add_(0, numbers, sums.square_())
    return outer


def _add_formed(total: Tensor, outer: Outer | None, rows: Rows | None, whole: Tensor) -> None:
    for example in range(len(whole)):
        gradient = whole[example].float()
        if outer is not None:
            gradient = gradient + (outer.left[example].T @ outer.right[example]).float()
        if rows is not None:
            gradient = gradient.index_add(0, rows.ids[example], rows.values[example].float())
        total.addcmul_(gradient, gradient)


# What one pass through a layer adds, by the kind of layer.


def _tokens(values: Tensor) -> Tensor:
    """Shape (b, t, n): everything between example and last dimension counts as tokens."""
    return values.reshape(len(values), -1, values.shape[-1])


def _reached(back: Tensor) -> Tensor | None:
    """Tokens to which something flows back, shape (b, m); None if these are all.

    Padding is none, nor is in the last layer what the loss does not look at. The examples
    with fewer than the others have some that are none among them.
    """
    if bool((back[..., :8] != 0).any(-1).all()):  # most often: no need to look at the rest
        return None
    there = (back != 0).any(-1)
    most = int(there.sum(1).max())
    if most == there.shape[1]:
        return None
    return torch.sort(there.int(), dim=1, descending=True, stable=True).indices[:, :most]


def _linear(layer: nn.Linear, entered: Tensor, back: Tensor) -> list[tuple[Tensor, Part]]:
    back = _tokens(back)
    entered = _tokens(entered).to(back.dtype)
    outer = Outer(back, entered).at(_reached(back))
    parts: list[tuple[Tensor, Part]] = [(layer.weight, outer)]
    if layer.bias is not None:
        parts.append((layer.bias, Whole(back.float().sum(1))))
    return parts


def _conv1d(layer: nn.Module, entered: Tensor, back: Tensor) -> list[tuple[Tensor, Part]]:
    """GPT-2's dense layer, whose weight is transposed."""
    back = _tokens(back)
    entered = _tokens(entered).to(back.dtype)
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    outer = Outer(entered, back).at(_reached(back))
    return [(weight, outer), (bias, Whole(back.float().sum(1)))]


def _embedding(layer: nn.Embedding, entered: Tensor, back: Tensor) -> list[tuple[Tensor, Part]]:
    back = _tokens(back)
    ids = entered.reshape(len(entered), -1)
    if layer.padding_idx is not None:  # its row gets no gradient
        back = back.masked_fill((ids == layer.padding_idx)[..., None], 0.0)
    return [(layer.weight, Rows(ids, back))]


def _norm(layer: nn.Module, entered: Tensor, back: Tensor) -> list[tuple[Tensor, Part]]:
    assert isinstance(layer, nn.LayerNorm | nn.RMSNorm)
    back, entered = back.float(), entered.float()
    if isinstance(layer, nn.LayerNorm):
        plain = nn.functional.layer_norm(entered, layer.normalized_shape, None, None, layer.eps)
    else:
        plain = nn.functional.rms_norm(entered, list(layer.normalized_shape), None, layer.eps)
    middle = tuple(range(1, back.dim() - len(layer.normalized_shape)))

    def summed(values: Tensor) -> Whole:
        return Whole(values.sum(middle) if middle else values)

    parts: list[tuple[Tensor, Part]] = []
    if layer.weight is not None:
        parts.append((layer.weight, summed(back * plain)))
    if (bias := getattr(layer, "bias", None)) is not None:
        parts.append((bias, summed(back)))
    return parts


Rule = Callable[..., list[tuple[Tensor, Part]]]


def rule_of(layer: nn.Module) -> Rule | None:
    """The rule for a layer of exactly that class; None where there is none."""
    kind = type(layer)
    if kind is nn.Linear:
        return _linear
    if kind is nn.LayerNorm or kind is nn.RMSNorm:
        return _norm
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding:
        plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        return _embedding if plain else None
    return _conv1d if _is_conv1d(kind) else None


def _is_conv1d(kind: type) -> bool:
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
