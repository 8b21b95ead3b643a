"""A distribution of rates as a baseline file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clbench.models.groups import Division, divide_layers
from clbench.suite.baselines import Cost


@dataclass(frozen=True)
class FoundOn:
    """What a distribution was found on.

    Attributes
    ----------
    flat
        The flat rate that its multiples are of.
    depth
        Layers of the model.
    division
        How layers were grouped.
    """

    flat: float = 2e-5
    depth: int = 12
    division: Division = "code"

    def groups(self, count: int) -> list[str]:
        """Names of the groups that `count` rates belong to."""
        inner = divide_layers(self.depth, count - 2, self.division)
        names = [
            f"layers {', '.join(map(str, g))}"
            if len(g) > 1
            else f"layer {g[0]}"
            if g
            else "no layer"
            for g in inner
        ]
        return ["embeddings", *names, "head"]


def baseline_text(
    rates: Sequence[float],
    found: FoundOn,
    *,
    description: str,
    sources: Mapping[str, str],
    cost: Cost | None = None,
) -> str:
    """Content of a baseline file of the method ``layerwise``.

    The rates stand there as multiples of the flat one, so that they keep their meaning at
    another.

    Parameters
    ----------
    rates
        Absolute.
    found
        Model and flat rate of the search.
    description
        One line for lists.
    sources
        Where ``multiples``, ``depth`` and ``division`` come from.
    cost
        What finding the rates took, if that is known.
    """
    names = found.groups(len(rates))
    lines = [f"  {rate / found.flat!r},  # {name}" for rate, name in zip(rates, names, strict=True)]
    settings = [
        "multiples = [",
        *lines,
        "]",
        f"depth = {found.depth}",
        f"division = {json.dumps(found.division)}",
    ]
    told = [f"{key} = {json.dumps(text, ensure_ascii=False)}" for key, text in sources.items()]
    head = ['method = "layerwise"', f"description = {json.dumps(description, ensure_ascii=False)}"]
    lines = [*head, "", "[settings]", *settings, "", "[sources]", *told]
    if cost is not None:
        lines += ["", "[cost]", *(f"{key} = {value}" for key, value in cost.model_dump().items())]
    return "\n".join(lines) + "\n"
