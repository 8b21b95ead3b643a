"""Learning-rate groups: embeddings, encoder layers from the bottom up, head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import nn

    from clbench.models.families import Family

Division = Literal["code", "paper"]


class LayerGroup(NamedTuple):
    """Parameters that lie at one depth of a model.

    Attributes
    ----------
    name
        ``embeddings``, ``layer.0`` … ``layer.<L - 1>``, or ``head``.
    parameters
        Their names, as `torch.nn.Module.named_parameters` gives them.
    """

    name: str
    parameters: tuple[str, ...]


def divide_layers(depth: int, parts: int, division: Division = "code") -> list[list[int]]:
    """Numbers of the layers in each of `parts` consecutive groups, lowest first.

    Parameters
    ----------
    depth
        Number of layers L, at least 1.
    parts
        Number of groups; with more groups than layers some are empty.
    division
        ``code``: group i (from 1) holds layers ceil(L/parts·(i−1)) … ceil(L/parts·i)−1,
        as in the code of Kenneweg et al. 2022, which gives the 12 layers of BERT base
        {0,1}{2}{3,4}{5}{6,7}{8}{9,10}{11}. ``paper``: the same with floor, which gives
        {0}{1,2}{3}{4,5}{6}{7,8}{9}{10,11} as in the paper's text, section 3. Both agree
        where L is a multiple of `parts`.

    Raises
    ------
    ValueError
        If `depth` or `parts` is below 1, or `division` is neither.
    """
    if depth < 1 or parts < 1:
        raise ValueError(f"cannot divide {depth} layers into {parts} groups")
    if division == "code":
        edges = [-(-depth * i // parts) for i in range(parts + 1)]
    elif division == "paper":
        edges = [depth * i // parts for i in range(parts + 1)]
    else:
        raise ValueError(f"division must be 'code' or 'paper', not {division!r}")
    return [list(range(edges[i], edges[i + 1])) for i in range(parts)]


def ten_groups(depth: int, *, division: Division = "code") -> list[list[int]]:
    """The layers in groups 1 to 8 of the ten of Kenneweg et al. 2022; 0 and 9 have none.

    The code and the text of that paper group 12 layers differently; the code's grouping is
    the default because the published rates were found with it. See `divide_layers`.
    """
    return divide_layers(depth, 8, division)


def layer_groups_of(model: nn.Module, family: Family, prefix: str) -> list[LayerGroup]:
    """Every parameter of `model` once, by depth.

    Parameters
    ----------
    model
        The whole model.
    family
        Of its backbone.
    prefix
        What the backbone's parameters begin with, such as ``"backbone."``. Parameters that
        begin otherwise are the head's.
    """
    depth = len(model.get_submodule(prefix + family.layers))  # type: ignore[arg-type]
    names = ["embeddings", *(f"layer.{number}" for number in range(depth)), "head"]
    members: dict[str, list[str]] = {name: [] for name in names}
    for parameter, _ in model.named_parameters():
        inside = parameter.startswith(prefix)
        group = family.group_of(parameter[len(prefix) :]) if inside else "head"
        members[group].append(parameter)
    return [LayerGroup(name, tuple(parameters)) for name, parameters in members.items()]


def lr_groups(
    model: nn.Module,
    rates: Sequence[float],
    *,
    division: Division = "code",
    depth: int | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups with a rate each, for any torch optimizer.

    Parameters
    ----------
    model
        A `clbench.models.classifier.Classifier`, or a transformers model with a head on
        top of its backbone, such as ``AutoModelForSequenceClassification`` gives.
    rates
        One rate a group, at least three: embeddings, groups of layers from the bottom up,
        head. Ten make the division of Kenneweg et al. 2022.
    division
        How the layers are divided; see `divide_layers`.
    depth
        Number of layers of the model that the rates were found on. A model of another depth
        then gets a group for each of its layers, with rates by relative position; see
        `clbench.models.rates.transfer_rates`. None divides the model's own layers.

    Returns
    -------
    list of dict
        ``params``, ``lr``, ``name`` and ``group`` (the rate's position). Frozen parameters
        are left out, and so are groups without parameters, as a model of 6 layers leaves
        some of ten.

    Raises
    ------
    ValueError
        If rates are no list of numbers or fewer than three, if one is negative or not
        finite, or if rates that are not above 0 are to be carried to another depth.
    ModelError
        If the model cannot be divided into layers.
    """
    try:
        if isinstance(rates, str):
            raise TypeError  # its characters would be taken for rates
        rates = [float(rate) for rate in rates]
    except (TypeError, ValueError):
        raise ValueError(f"rates must be a list of numbers, not {rates!r}") from None
    if depth is not None and not (isinstance(depth, Integral) and depth > 0):
        raise ValueError(f"depth must be a number of layers, 1 or more, not {depth!r}")
    if len(rates) < 3:
        raise ValueError(f"{len(rates)} rates: give at least three (embeddings, layers, head)")
    wrong = [rate for rate in rates if not 0.0 <= rate < math.inf]
    if wrong:
        raise ValueError(f"rates must be finite and 0 or more, not {wrong[0]!r}")
    by_depth = _layer_groups(model)
    own = len(by_depth) - 2
    if depth is not None and depth != own:
        from clbench.models.rates import transfer_rates

        rates = transfer_rates(rates, depth, own, division=division)
    last = len(rates) - 1
    place = {"embeddings": 0, "head": last}
    for group, layers in enumerate(divide_layers(own, last - 1, division), 1):
        place |= {f"layer.{layer}": group for layer in layers}
    parameters = dict(model.named_parameters())
    members: list[list[nn.Parameter]] = [[] for _ in rates]
    for depth_group in by_depth:
        members[place[depth_group.name]] += [
            parameters[name] for name in depth_group.parameters if parameters[name].requires_grad
        ]
    names = ["embeddings", *(f"layers.{i}" for i in range(1, last)), "head"]
    return [
        {"params": inside, "lr": float(rate), "name": name, "group": number}
        for number, (inside, rate, name) in enumerate(zip(members, rates, names, strict=True))
        if inside
    ]


def depth_of(model: nn.Module) -> int:
    """Number of layers with weights of their own; ALBERT's, which share theirs, count once.

    Raises
    ------
    ModelError
        If the model cannot be divided into layers.
    """
    return len(_layer_groups(model)) - 2


def _layer_groups(model: nn.Module) -> list[LayerGroup]:
    own = getattr(model, "layer_groups", None)
    if callable(own):
        groups: list[LayerGroup] = own()
        return groups
    from transformers import PreTrainedModel

    from clbench.errors import ModelError
    from clbench.models.families import family_of

    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"{type(model).__name__} is neither a clbench Classifier nor a transformers model."
        )
    backbone = model.base_model
    prefix = "" if backbone is model else f"{model.base_model_prefix}."
    return layer_groups_of(model, family_of(backbone), prefix)
