"""Learning rates by depth: from the model they were found on to one of another depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clbench.models.groups import Division, divide_layers


def transfer_rates(
    rates: Sequence[float], found_on: int, depth: int, *, division: Division = "code"
) -> list[float]:
    """A distribution of rates for a model of another depth, by relative position.

    Layer i of n covers the part i/n … (i + 1)/n of the way from the embeddings to the head.
    A layer of the new model gets the geometric mean of the rates of the old layers in its
    part, each weighted by how much of the part it covers; geometric, as rates are searched
    and combined in log space (Kenneweg et al. 2022, sections 3.1 and 3.2, equation 1). The
    rates of embeddings and head stay. So the same depth keeps every layer's rate, half the
    depth takes the mean of two layers each, twice the depth gives each rate to two layers,
    and a model whose layers are all one (ALBERT) gets the mean over all layers.

    Parameters
    ----------
    rates
        At least three, above 0: embeddings, groups of layers from the bottom up, head.
    found_on
        Number of layers of the model that they were found on.
    depth
        Number of layers of the model that they are for; layers that share their weights
        count once.
    division
        How the layers of the first model were grouped; see `divide_layers`.

    Returns
    -------
    list of float
        `depth` + 2 rates: embeddings, each layer from the bottom up, head.

    Raises
    ------
    ValueError
        If there are fewer than three rates, one is not above 0, or a depth is below 1.
    """
    if len(rates) < 3:
        raise ValueError(f"{len(rates)} rates: give at least three (embeddings, layers, head)")
    wrong = [rate for rate in rates if not 0.0 < rate < math.inf]
    if wrong:
        raise ValueError(f"rates must be above 0 to be carried to another depth, not {wrong[0]!r}")
    if depth < 1:
        raise ValueError(f"cannot carry rates to {depth} layers")
    logs = [
        math.log(rate)
        for rate, layers in zip(
            rates[1:-1], divide_layers(found_on, len(rates) - 2, division), strict=True
        )
        for _ in layers
    ]
    inner = []
    for layer in range(depth):
        # In units of 1/(found_on·depth) all edges are whole numbers.
        first, last = layer * found_on, (layer + 1) * found_on
        shares = [min(last, (i + 1) * depth) - max(first, i * depth) for i in range(found_on)]
        total = sum(share * log for share, log in zip(shares, logs, strict=True) if share > 0)
        inner.append(math.exp(total / found_on))
    return [float(rates[0]), *inner, float(rates[-1])]
