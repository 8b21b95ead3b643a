"""Gradients of single examples in compact form, and the sums of their squares or sizes."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

TILE = (768, 512)
"""Rows and columns of a gradient formed at a time on the CPU, so that they fit into its cache."""
TOGETHER = 4
"""Examples in one product in bf16, where a single one is too small to be divided among cores."""
CHUNK_ACCELERATOR = 1 << 25
"""Numbers of gradients formed at a time on accelerators."""
PAIRED = 3
"""Most tokens for which the CPU expands the square instead of forming the gradient."""
ROWS = 2048
"""Rows of a weight whose squares are expanded at a time."""
CANCELLED = 0.02
"""Share of their terms below which expanded squares have cancelled: they are redone in float64."""


class Outer(NamedTuple):
    """Gradients ``leftᵀ right`` of shape (o, i) from `left` (b, t, o) and `right` (b, t, i)."""

    left: Tensor
    right: Tensor


class Rows(NamedTuple):
    """Gradients that are zero except in the rows `ids` (b, t), to which `values` (b, t, i) add."""

    ids: Tensor
    values: Tensor


class Whole(NamedTuple):
    """Complete gradients, shape (b, *shape)."""

    values: Tensor


Part = Outer | Rows | Whole
"""What one use of a weight adds to its gradients, example by example."""
Size = Callable[[Tensor], Tensor]
"""What is added of a gradient: its square or absolute value."""
Rotation = tuple[Tensor | None, Tensor | None]
"""Orthogonal matrices U (o, o) and V (i, i) for a weight of shape (o, i); None is the identity."""


def rotate(values: Tensor, rotation: Rotation) -> Tensor:
    """Return ``Uᵀ·values·V``, shape (o, i), in the type of U and V."""
    left, right = rotation
    values = values if left is None else left.T @ values.to(left)
    return values if right is None else values.to(right) @ right


def rotate_back(values: Tensor, rotation: Rotation) -> Tensor:
    """Return ``U·values·Vᵀ``, shape (o, i), which undoes `rotate`."""
    left, right = rotation
    return rotate(values, (None if left is None else left.T, None if right is None else right.T))


def rotate_outer(part: Outer, rotation: Rotation) -> Outer:
    """Return the gradients of `part` rotated, in float32."""
    left, right = (
        side.float() if axes is None else side.float() @ axes
        for side, axes in zip(part, rotation, strict=True)
    )
    return Outer(left, right)


def add_squares(total: Tensor, parts: Sequence[Part]) -> None:
    """Add to `total`, float32, the sum over examples of the squared gradient of a weight.

    There is one part for each use of the weight; their gradients are added before squaring.
    """
    outer: Outer | None = _join(Outer, parts)
    rows: Rows | None = _join(Rows, parts)
    whole = [part.values for part in parts if isinstance(part, Whole)]
    if whole and (outer or rows):
        _add_by_example(total, outer, rows, torch.stack(whole).sum(0))
    elif whole:
        total += torch.stack(whole).sum(0).float().square().sum(0)
    else:
        if rows is not None:
            outer = _add_rows(total, rows, outer)
        if outer is not None:
            _add_outer(total, outer)


def add_absolutes(total: Tensor, parts: Sequence[Part]) -> None:
    """Add to `total` the sum over examples of a gradient's absolute value, as `add_squares` does.

    With parts of several kinds the total stays as it is, and fails a comparison with plain passes.
    """
    kinds = {type(part) for part in parts}
    if kinds == {Whole}:
        total += torch.stack([part.values for part in parts]).sum(0).float().abs().sum(0)  # type: ignore[union-attr]
    elif kinds == {Rows}:
        _add_rows(total, _join(Rows, parts), None, Tensor.abs_)
    elif kinds == {Outer}:
        left, right = _join(Outer, parts)
        if total.device.type != "cpu":
            _add_products(total, left, right, Tensor.abs_)
            return
        for block, gradient in gradients_by_parts(total, left, right):
            block += gradient.abs_()


def _join(kind: type, parts: Sequence[Part]) -> Any:
    """Return all parts of a kind as one with more tokens, or None."""
    matches = [part for part in parts if isinstance(part, kind)]
    if len(matches) < 2:
        return matches[0] if matches else None
    return kind(*(torch.cat(values, 1) for values in zip(*matches, strict=True)))


def _add_outer(total: Tensor, part: Outer) -> None:
    left, right = part
    if total.device.type != "cpu":
        _add_products(total, left, right, Tensor.square_)
    elif left.shape[1] > PAIRED:
        for block, gradient in gradients_by_parts(total, left, right):
            block.addcmul_(gradient, gradient)
    else:
        for rows in _slices(len(total), ROWS):
            squares, cross = _expand(left[..., rows].float(), right.float())
            if bool((squares + cross < CANCELLED * squares).any()):
                squares, cross = _expand(left[..., rows].double(), right.double())
            total[rows] += (squares + cross).clamp_(min=0.0)


def _add_products(total: Tensor, left: Tensor, right: Tensor, sized: Size) -> None:
    """Add the sizes of the gradients ``leftᵀ right`` of all examples, fast on accelerators."""
    step = max(1, CHUNK_ACCELERATOR // total.numel())
    for start in range(0, len(left), step):
        pick = slice(start, start + step)
        total += sized(torch.bmm(left[pick].transpose(1, 2), right[pick]).float()).sum(0)


def _expand(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over examples of ``(l_t r_t)²`` and of the terms ``2 l_s l_t r_s r_t``."""
    squares = left.flatten(0, 1).square().T @ right.flatten(0, 1).square()
    pairs = [(s, t) for t in range(left.shape[1]) for s in range(t)]
    if not pairs:
        return squares, torch.zeros(())
    lefts = torch.cat([left[:, s] * left[:, t] for s, t in pairs])
    rights = torch.cat([right[:, s] * right[:, t] for s, t in pairs]).mul_(2.0)
    return squares, lefts.T @ rights


def gradients_by_parts(
    total: Tensor, left: Tensor, right: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the gradients ``leftᵀ right`` of all examples in parts that fit into a CPU cache.

    Each item is a view of a part of `total`, shape (o, i), and an example's gradient there,
    float32, which the next item overwrites. Under autocast gradients are formed in bf16, as by
    autograd (each number is rounded by up to 1/256).
    """
    in_bf16 = left.dtype == right.dtype == torch.bfloat16
    if not in_bf16:
        left, right = left.float(), right.float()
    left = left.transpose(1, 2)
    together = min(len(left), TOGETHER) if in_bf16 else 1
    for rows in _slices(len(total), TILE[0]):
        for columns in _slices(total.shape[1], TILE[1]):
            part = total[rows, columns]
            product = torch.empty((together, *part.shape), dtype=left.dtype)
            gradients = torch.empty_like(product, dtype=torch.float32) if in_bf16 else product
            views = gradients.unbind(0)
            # All views at once: one by one they would take as long as small products.
            lefts = torch.split(left[:, rows], together)
            rights = torch.split(right[..., columns], together)
            for left_part, right_part in zip(lefts, rights, strict=True):
                count = len(left_part)
                torch.bmm(left_part, right_part, out=product[:count])
                if in_bf16:
                    gradients[:count].copy_(product[:count])
                for gradient in views[:count]:
                    yield part, gradient


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _add_rows(
    total: Tensor, part: Rows, outer: Outer | None, sized: Size = Tensor.square_
) -> Outer | None:
    """Add the squares of sparse rows, each together with dense gradients of the same row.

    Returns the dense gradients without those rows of those examples.
    """
    size = len(total)
    examples, tokens = part.ids.shape
    owner = torch.arange(examples, device=part.ids.device)[:, None].expand(-1, tokens)
    pairs, inverse = torch.unique(owner * size + part.ids, return_inverse=True)
    sums = torch.zeros((len(pairs), total.shape[1]), device=total.device)
    sums.index_add_(0, inverse.reshape(-1), part.values.float().reshape(-1, total.shape[1]))
    numbers = pairs % size
    if outer is not None:
        limits = torch.arange(examples + 1, device=pairs.device) * size
        bounds = torch.searchsorted(pairs, limits).tolist()
        for example, (start, end) in enumerate(pairwise(bounds)):
            left = outer.left[example][:, numbers[start:end]]
            sums[start:end] += (left.T @ outer.right[example]).float()
        left = outer.left.clone()
        left[pairs // size, :, numbers] = 0.0
        outer = Outer(left, outer.right)
    total.index_add_(0, numbers, sized(sums))
    return outer


def _add_by_example(total: Tensor, outer: Outer | None, rows: Rows | None, whole: Tensor) -> None:
    for example in range(len(whole)):
        gradient = whole[example].float()
        if outer is not None:
            gradient = gradient + (outer.left[example].T @ outer.right[example]).float()
        if rows is not None:
            gradient = gradient.index_add(0, rows.ids[example], rows.values[example].float())
        total.addcmul_(gradient, gradient)
