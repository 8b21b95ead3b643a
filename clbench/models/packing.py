"""Rows of a batch packed into sequences in which each row attends to itself only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ATTENTION = "clbench_stream"
"""Name, in transformers, of the attention that divides a packed sequence into its rows."""
ROWS = "packed_rows"
"""Name of the argument that tells that attention of the rows."""
PACKED_LENGTH = 256
"""Most tokens of a packed sequence for any other attention, whose cost grows with its square."""


@dataclass(frozen=True)
class RowGroup:
    """Adjacent rows of similar lengths in a packed sequence.

    Attributes
    ----------
    rows, length
        Number b of the rows, and tokens n of the longest.
    places
        Shape (t,): where the group's tokens are among the b * n places of the padded rows.
    """

    rows: int
    length: int
    places: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> RowGroup:
        """Return the group of rows of `lengths`."""
        sizes = torch.tensor(lengths, device=device)
        inside = torch.arange(max(lengths), device=device) < sizes[:, None]
        return cls(len(lengths), max(lengths), inside.flatten().nonzero()[:, 0])

    def pad(self, states: Tensor) -> Tensor:
        """Return rows, shape (b, heads, n, d), of the tokens' states, shape (t, heads, d)."""
        padded = states.new_zeros((self.rows * self.length, states[0].numel()))
        padded = padded.index_copy(0, self.places, states.flatten(1))
        return padded.view(self.rows, self.length, *states.shape[1:]).transpose(1, 2)

    def unpad(self, states: Tensor) -> Tensor:
        """Return the tokens, shape (t, heads, d), of padded states, shape (b, n, heads, d)."""
        padded = states.reshape(self.rows * self.length, -1)
        tokens: Tensor = _Pick.apply(padded, self.places)  # type: ignore[no-untyped-call]
        return tokens.view(-1, *states.shape[2:])


class _Pick(torch.autograd.Function):
    """Picks vectors at places, all of them different.

    Torch expects that some may be equal, and adds up gradients, one vector at a time.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, places: Tensor) -> Tensor:
        ctx.count = len(vectors)
        ctx.save_for_backward(places)
        return vectors.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        whole = gradient.new_zeros((ctx.count, *gradient.shape[1:]))
        return whole.index_copy_(0, places, gradient), None


def row_groups(lengths: Sequence[int], device: torch.device) -> list[RowGroup]:
    """Return the groups of rows of decreasing `lengths`; none is padded to twice its length."""
    groups: list[RowGroup] = []
    first = 0
    while first < len(lengths):
        own = [length for length in lengths[first:] if 2 * length > lengths[first]]
        groups.append(RowGroup.of(own, device))
        first += len(own)
    return groups


def pack(
    arguments: Mapping[str, Tensor], predict: Tensor, room: int | None
) -> tuple[dict[str, Any], Tensor]:
    """Return the rows of a batch in sequences of up to `room` tokens, and where to predict.

    Positions start anew with each row, and the mask, shape (s, 1, n, n), lets a token see the
    earlier ones of its row. Without `room`, all rows are in one sequence, and in place of a mask
    `ROWS` says where they are, for the attention named `ATTENTION`. The positions to predict at,
    shape (1, b * m), count through all sequences.
    """
    mask = arguments["attention_mask"].bool()
    row, column = torch.nonzero(mask, as_tuple=True)
    key = "input_ids" if "input_ids" in arguments else "inputs_embeds"
    values = arguments[key]
    lengths = mask.sum(1).tolist()
    places, width = _places(lengths, room or sum(lengths))
    count = 1 + max(number for number, _ in places)
    starts = torch.tensor([number * width + start for number, start in places], device=mask.device)
    at = starts[row] + column

    def filled(content: Tensor, empty: int) -> Tensor:
        whole = content.new_full((count * width, *content.shape[1:]), empty)
        return whole.index_copy(0, at, content).view(count, width, *content.shape[1:])

    packed: dict[str, Any] = {
        key: filled(values[row, column], 0),
        "position_ids": filled(column, 0),
    }
    if room is None:
        packed[ROWS] = row_groups(sorted(lengths, reverse=True), mask.device)
        packed["attention_mask"] = mask.new_ones((1, 1, 1, width))  # else transformers makes one
    else:
        owner = filled(row, -1)
        packed["attention_mask"] = (owner[:, :, None] == owner[:, None, :]).tril()[:, None]
    return packed, (starts[:, None] + predict).view(1, -1)


def _places(lengths: Sequence[int], room: int) -> tuple[list[tuple[int, int]], int]:
    """Return the sequence and the start of each row, and the tokens of the longest sequence.

    The longest rows come first, each into the fullest sequence that still has room.
    """
    room = max(room, *lengths)
    used: list[int] = []
    places = [(0, 0)] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [n for n, tokens in enumerate(used) if tokens + lengths[i] <= room]
        number = max(fitting, key=lambda n: used[n], default=len(used))
        if number == len(used):
            used.append(0)
        places[i] = number, used[number]
        used[number] += lengths[i]
    return places, max(used)
