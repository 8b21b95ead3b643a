"""Learning rates by depth: groups for an optimizer, and transfer to models of another depth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from clbench.core.errors import ArgumentError, ModelError, format_value

if TYPE_CHECKING:
    from torch import nn

    from clbench.models.families import Family

Division = Literal["code", "paper"]
MOST_LAYERS = 1000
"""Most layers of a model; a configuration with more is wrong, and would take minutes to build."""


class LayerGroup(NamedTuple):
    """Parameters at one depth of a model."""

    name: str
    """``embeddings``, ``layer.0`` … ``layer.<L - 1>``, or ``head``."""
    parameters: tuple[str, ...]
    """Their names, as `torch.nn.Module.named_parameters` gives them."""


def divide_layers(depth: int, parts: int, division: Division = "code") -> list[list[int]]:
    """Return the numbers of `depth` layers in `parts` consecutive groups, lowest first.

    If there are more groups than layers, some are empty.

    Parameters
    ----------
    division
        ``code``: group i (from 1) holds layers ceil(L/parts·(i−1)) … ceil(L/parts·i)−1, as in
        the code of Kenneweg et al. 2022. Its eight groups of BERT base are
        {0,1}{2}{3,4}{5}{6,7}{8}{9,10}{11}, with which the published rates were found.
        ``paper``: the same with floor, which gives {0}{1,2}{3}{4,5}{6}{7,8}{9}{10,11} as in
        the paper's text, section 3. Both agree if L is a multiple of `parts`.

    Raises
    ------
    ArgumentError
        If `depth` or `parts` is below 1, or `division` is neither.
    """
    if depth < 1 or parts < 1:
        raise ArgumentError(f"cannot divide {depth} layers into {parts} groups")
    if division == "code":
        edges = [-(-depth * i // parts) for i in range(parts + 1)]
    elif division == "paper":
        edges = [depth * i // parts for i in range(parts + 1)]
    else:
        raise ArgumentError(f"division must be 'code' or 'paper', not {division!r}")
    return [list(range(edges[i], edges[i + 1])) for i in range(parts)]


def depth_positions(depth: int, values: int, division: Division = "code") -> dict[str, int]:
    """Return the position of each `LayerGroup`, by its name, in a list of values by depth.

    The first of the `values`, at least three, is for the embeddings, the last for the head, and the
    others for groups of the `depth` layers from the bottom up, as `divide_layers` makes them.
    """
    positions = {"embeddings": 0, "head": values - 1}
    for number, layers in enumerate(divide_layers(depth, values - 2, division), 1):
        positions |= {f"layer.{layer}": number for layer in layers}
    return positions


def layer_groups_of(model: nn.Module, family: Family, prefix: str) -> list[LayerGroup]:
    """Return every parameter of `model` once, by depth.

    The names of the parameters of its backbone, which is of `family`, begin with `prefix`, such
    as ``"backbone."``; all others belong to the head.
    """
    lists = [model.get_submodule(prefix + path) for path in (family.layers, *family.parallel)]
    depth = max(map(len, lists))  # type: ignore[arg-type]
    names = ["embeddings", *(f"layer.{number}" for number in range(depth)), "head"]
    members: dict[str, list[str]] = {name: [] for name in names}
    for parameter, _ in model.named_parameters():
        inside = parameter.startswith(prefix)
        group = family.group_of(parameter[len(prefix) :]) if inside else "head"
        members[group].append(parameter)
    return [LayerGroup(name, tuple(parameters)) for name, parameters in members.items()]


def lr_groups(
    model: nn.Module,
    rates: Iterable[float],
    *,
    division: Division = "code",
    depth: int | None = None,
) -> list[dict[str, Any]]:
    """Return parameter groups with a learning rate each, for any torch optimizer.

    Parameters
    ----------
    model
        A `clbench.models.classifier.Classifier`, or a transformers model with a head on top of
        its backbone, as ``AutoModelForSequenceClassification`` gives.
    rates
        One rate per group, at least three: embeddings, groups of layers from the bottom up,
        head. Ten rates make the division of Kenneweg et al. 2022.
    division
        How the layers are divided; see `divide_layers`.
    depth
        Number of layers of the model that the rates come from. A model of another depth then
        gets a group for each of its layers, with rates by relative position; see
        `transfer_rates`. None divides the model's own layers.

    Returns
    -------
    list of dict
        ``params``, ``lr``, ``name`` and ``group`` (the rate's position). Frozen parameters and
        groups without parameters are left out.

    Raises
    ------
    ArgumentError
        If there are fewer than three rates, one is negative or not finite, or one is 0 and they
        are transferred to another depth.
    ModelError
        If the model cannot be divided into layers.
    """
    rates = _check_rates(rates)
    layers = _layer_groups(model)
    own = len(layers) - 2
    if depth is not None and depth != own:
        rates = transfer_rates(rates, depth, own, division=division)
    last = len(rates) - 1
    position = depth_positions(own, len(rates), division)
    parameters = dict(model.named_parameters())
    members: list[list[nn.Parameter]] = [[] for _ in rates]
    for layer_group in layers:
        members[position[layer_group.name]] += [
            parameters[name] for name in layer_group.parameters if parameters[name].requires_grad
        ]
    names = ["embeddings", *(f"layers.{i}" for i in range(1, last)), "head"]
    return [
        {"params": inside, "lr": rate, "name": name, "group": number}
        for number, (inside, rate, name) in enumerate(zip(members, rates, names, strict=True))
        if inside
    ]


def depth_of(model: nn.Module) -> int:
    """Return the number of layers with weights of their own; ALBERT's shared ones count once."""
    return len(_layer_groups(model)) - 2


def _layer_groups(model: nn.Module) -> list[LayerGroup]:
    if hasattr(model, "layer_groups"):
        groups: list[LayerGroup] = model.layer_groups()  # type: ignore[operator]
        return groups
    from transformers import PreTrainedModel

    from clbench.models.families import family_of

    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"{type(model).__name__} is neither a clbench Classifier nor a transformers model."
        )
    backbone = model.base_model
    prefix = "" if backbone is model else f"{model.base_model_prefix}."
    return layer_groups_of(model, family_of(backbone), prefix)


def transfer_rates(
    rates: Sequence[float], source_depth: int, depth: int, *, division: Division = "code"
) -> list[float]:
    """Return the rates for a model of another depth, by relative position.

    Layer i of n covers the part i/n … (i + 1)/n of the way from the embeddings to the head. A
    layer of the new model gets the geometric mean of the rates of the old layers in its part,
    each weighted by how much of the part it covers; geometric, because rates are searched and
    combined in log space (Kenneweg et al. 2022, sections 3.1 and 3.2, equation 1). The rates
    of embeddings and head stay. A model with one layer (ALBERT) gets the mean of all layers.

    Parameters
    ----------
    rates
        At least three, above 0: embeddings, groups of layers from the bottom up, head.
    source_depth
        Number of layers of the model that the rates come from.
    depth
        Number of layers of the new model; layers that share their weights count once.
    division
        How the layers of the source model are grouped; see `divide_layers`.

    Returns
    -------
    list of float
        `depth` + 2 rates: embeddings, each layer from the bottom up, head.

    Raises
    ------
    ArgumentError
        If there are fewer than three rates, one is not above 0, or a depth is below 1.
    """
    rates = _check_rates(rates)
    if min(rates) == 0.0:
        raise ArgumentError("rates must be above 0 to be transferred to another depth")
    if depth < 1:
        raise ArgumentError(f"cannot transfer rates to {depth} layers")
    parts = divide_layers(source_depth, len(rates) - 2, division)
    logs = [math.log(r) for r, layers in zip(rates[1:-1], parts, strict=True) for _ in layers]
    inner = []
    for layer in range(depth):
        # In units of 1/(source_depth·depth) all edges are whole numbers.
        first, last = layer * source_depth, (layer + 1) * source_depth
        shares = [min(last, (i + 1) * depth) - max(first, i * depth) for i in range(source_depth)]
        total = sum(share * log for share, log in zip(shares, logs, strict=True) if share > 0)
        inner.append(math.exp(total / source_depth))
    return [rates[0], *inner, rates[-1]]


def _check_rates(rates: Iterable[float]) -> list[float]:
    try:
        values = [float(rate) for rate in rates]
    except (TypeError, ValueError):
        raise ArgumentError(f"rates must be numbers, not {format_value(rates)}") from None
    if len(values) < 3:
        raise ArgumentError(f"{len(values)} rates: give at least three (embeddings, layers, head)")
    for rate in values:
        if not 0.0 <= rate < math.inf:
            raise ArgumentError(f"rates must be finite and 0 or more, not {rate!r}")
    return values
