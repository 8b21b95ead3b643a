"""Beginnings that many prompts share, such as solved examples: a decoder reads them once."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache

from clbench.models.classifier import evaluating
from clbench.models.families import attention_window

FEWEST = 32
"""Fewest shared tokens that are read by themselves."""
GAP = {True: 1e-3, False: 0.5}
"""Largest difference, in nats, from a plain pass, in float32 and in bf16."""


def alike(rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], int]]:
    """Yield the numbers of rows of tokens that begin alike, and with how many tokens.

    A token of each row is left; rows that begin like no other come together, with 0.
    """
    order = sorted(range(len(rows)), key=lambda i: [*rows[i]])
    alone: list[int] = []
    group, shared = order[:1], len(rows[order[0]]) - 1
    for before, i in [*pairwise(order), (order[-1], -1)]:
        same = 0 if i < 0 else common(rows[before], rows[i])
        if same >= FEWEST:
            group, shared = [*group, i], min(shared, same)
            continue
        if len(group) > 1:
            yield group, shared
        else:
            alone += group
        group, shared = [i], len(rows[i]) - 1
    if alone:
        yield alone, 0


def common(one: Sequence[int], two: Sequence[int]) -> int:
    """Return how many tokens two rows begin with alike, at most all but one of either."""
    most = min(len(one), len(two)) - 1
    return next((k for k in range(most) if one[k] != two[k]), most)


class Behind:
    """A decoder that has read the beginning of all its prompts, shape (1, p), and only once.

    It is called like the model, with what follows the beginning.
    """

    def __init__(self, model: Any, beginning: Tensor) -> None:
        self._model, self._length = model, beginning.shape[1]
        self._read = model.base_model(input_ids=beginning, use_cache=True).past_key_values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def cache(self, rows: int, room: int | None = None) -> Cache:
        """Return keys and values of the beginning for as many prompts.

        With `room` for so many tokens in all, further ones are added without a copy of the others.
        """
        copy = DynamicCache() if room is None else _Roomy(self._model.config, room)
        for number, layer in enumerate(self._read.layers):
            copy.update(*(v.expand(rows, -1, -1, -1) for v in (layer.keys, layer.values)), number)
        return copy

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Return what the model does; masks have shape (b, t) or (b, 1, t, t)."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        read = attention_mask.new_ones((*attention_mask.shape[:-1], self._length))
        return self._model(
            input_ids=input_ids,
            attention_mask=torch.cat([read, attention_mask], -1),
            position_ids=position_ids + self._length,
            past_key_values=self.cache(len(input_ids)),
            **options,
        )


class _Roomy(StaticCache):  # type: ignore[misc]
    """A cache with room for further tokens.

    With autocast, rotated keys are in float32 and values are not. It keeps both as products take
    them, so that they are not converted for every token that is written.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values to a layer's."""
        kind, dtype = key_states.device.type, key_states.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        states = key_states.to(dtype), value_states.to(dtype)
        both: tuple[Tensor, Tensor] = super().update(*states, *args, **kwargs)
        return both


def reads_ahead(model: Any) -> bool:
    """Return whether a model may read the beginning of prompts by itself: `Behind` is exact."""
    config = model.config
    if getattr(config, "is_encoder_decoder", False) or attention_window(config) is not None:
        return False
    ids = torch.arange(8, device=model.device)[None]
    mask = torch.ones_like(ids)
    with torch.no_grad(), evaluating(model), torch.autocast(ids.device.type, enabled=False):
        try:
            whole = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, 4:]
            parts = Behind(model, ids[:, :4])(ids[:, 4:], mask[:, 4:], use_cache=False).logits
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            return False
    gap = (whole.log_softmax(-1) - parts.log_softmax(-1)).abs().max()
    return bool(gap <= GAP[model.dtype == torch.float32])
