"""What differs from one architecture to another: pooling, layers, embeddings, inputs.

Each family is one `Family` record. An architecture without a record gets one that is read
off the model itself by `inspect_backbone`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from clbench.errors import ModelError
from clbench.models.last_layer import LastLayer, bert_layer, distilbert_layer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Family:
    """How models of one architecture are taken apart.

    Attributes
    ----------
    name
        The architecture's ``model_type``.
    layers
        Path of the module list of encoder (or decoder) layers, inside the backbone.
    embeddings
        Prefixes of the parameters that count as embeddings: all that comes before the
        first layer, and position tables that the layers read.
    pooling
        ``first`` token, or ``last`` real token for causal decoders.
    parallel
        Paths of further module lists whose entries belong to the same layers, as where
        attention and feed-forward parts are kept apart (XLM).
    within_layer
        Prefixes of parameters outside the list that belong to the layer of that number.
    offset_positions
        Whether position numbers start behind the padding token's number.
    options
        Further arguments of every forward pass.
    first_token
        The last layer for the first token alone; None where it has to run whole.
    """

    name: str
    layers: str
    embeddings: tuple[str, ...]
    pooling: Literal["first", "last"] = "first"
    parallel: tuple[str, ...] = ()
    within_layer: Mapping[str, int] = field(default_factory=dict)
    offset_positions: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    first_token: LastLayer | None = None

    def group_of(self, parameter: str) -> str:
        """``embeddings``, ``layer.<number>`` or ``head`` for a parameter of the backbone."""
        for path in (self.layers, *self.parallel):
            if parameter.startswith(f"{path}."):
                return f"layer.{parameter[len(path) + 1 :].partition('.')[0]}"
        for prefix, number in self.within_layer.items():
            if parameter.startswith(prefix):
                return f"layer.{number}"
        return "embeddings" if parameter.startswith(self.embeddings) else "head"


_BERT = Family("bert", "encoder.layer", ("embeddings.",), first_token=bert_layer)
_ROBERTA = Family(
    "roberta", "encoder.layer", ("embeddings.",), offset_positions=True, first_token=bert_layer
)
_ELECTRA = Family(
    "electra",
    "encoder.layer",
    ("embeddings.", "embeddings_project."),
    first_token=bert_layer,
)
_ALBERT = Family(
    "albert",
    "encoder.albert_layer_groups",  # one entry a group of layers that share their weights
    ("embeddings.", "encoder.embedding_hidden_mapping_in."),
)
_DEBERTA = Family(
    "deberta-v2",
    "encoder.layer",
    ("embeddings.", "encoder.rel_embeddings.", "encoder.LayerNorm."),
    within_layer={"encoder.conv.": 0},  # the convolution adds to the first layer's output
)
_MODERNBERT = Family("modernbert", "layers", ("embeddings.",))
_DISTILBERT = Family(
    "distilbert", "transformer.layer", ("embeddings.",), first_token=distilbert_layer
)
_GPT2 = Family("gpt2", "h", ("wte.", "wpe."), pooling="last", options={"use_cache": False})

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": _DISTILBERT,
    "albert": _ALBERT,
    "electra": _ELECTRA,
    "deberta-v2": _DEBERTA,
    "modernbert": _MODERNBERT,
    "gpt2": _GPT2,
}
"""By ``model_type``."""

_EMBEDDING_LIKE = re.compile(
    r"(^|[._])(w[tp]e|embed\w*|\w*embeddings?|relative_attention_bias)([._]|$)"
)


def family_of(backbone: PreTrainedModel) -> Family:
    """The family of a loaded backbone (without any head).

    Raises
    ------
    ModelError
        If it has no list of layers, is no text model or an encoder with a decoder.
    """
    family = FAMILIES.get(backbone.config.model_type) or inspect_backbone(backbone)
    if family.pooling == "first" and getattr(backbone.config, "is_decoder", False):
        return replace(family, pooling="last", first_token=None)
    return family


def inspect_backbone(backbone: PreTrainedModel) -> Family:
    """A record for an architecture that has none: its longest list of modules is its layers.

    Raises
    ------
    ModelError
        If it has no list of layers, is no text model or an encoder with a decoder.
    """
    config = backbone.config
    name = str(config.model_type)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"models of type {name!r} have both an encoder and a decoder. Use an encoder, or a "
            "decoder alone."
        )
    try:
        table: nn.Module | None = backbone.get_input_embeddings()
    except NotImplementedError:
        table = None
    if not isinstance(table, nn.Embedding):
        raise ModelError(f"models of type {name!r} read no token numbers. Use a text model.")
    lists = {path: module for path, module in _outer_lists(backbone) if _has_weights(module)}
    if not lists:
        raise ModelError(
            f"models of type {name!r} cannot be divided into layers: no list of modules in "
            f"{type(backbone).__name__}. Use another architecture."
        )
    depth = max(len(entries) for entries in lists.values())
    layers, *parallel = (path for path, entries in lists.items() if len(entries) == depth)
    inside = tuple(f"{path}." for path in (layers, *parallel))
    tables = {
        f"{path}.weight"
        for path, module in backbone.named_modules()
        if isinstance(module, nn.Embedding)
    }
    embeddings = tuple(
        parameter
        for parameter, _ in backbone.named_parameters()
        if not parameter.startswith(inside)
        and (parameter in tables or _EMBEDDING_LIKE.search(parameter))
    )
    return Family(
        name,
        layers,
        embeddings,
        pooling="last" if _is_causal(config) else "first",
        parallel=tuple(parallel),
        offset_positions=_offset_positions(backbone, table),
        options={"use_cache": False} if getattr(config, "use_cache", False) else {},
    )


def reads_segments(config: PreTrainedConfig) -> bool:
    """Whether ``token_type_ids`` tell segments apart; GPT-2 would look them up as words."""
    return int(getattr(config, "type_vocab_size", None) or 0) > 1


def usable_length(config: PreTrainedConfig) -> int | None:
    """The most tokens of a row that a model can take, special ones included; None if any.

    RoBERTa's table of 514 positions begins behind the padding number 1, so 512 are usable.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    family = FAMILIES.get(config.model_type)
    if (family is not None and family.offset_positions) or config.model_type in _OFFSET_TYPES:
        return positions - int(config.pad_token_id or 0) - 1
    return positions


_OFFSET_TYPES = frozenset(
    {"xlm-roberta-xl", "roberta-prelayernorm", "data2vec-text", "mpnet", "longformer", "esm"}
)


def _outer_lists(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.ModuleList]]:
    """Module lists that lie in no other list, so that experts are not taken for layers."""
    for name, child in module.named_children():
        at = f"{path}.{name}" if path else name
        if isinstance(child, nn.ModuleList):
            yield at, child
        else:
            yield from _outer_lists(child, at)


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _is_causal(config: PreTrainedConfig) -> bool:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    kind = config.model_type
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in (
        MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )


def _offset_positions(backbone: nn.Module, table: nn.Embedding) -> bool:
    """Whether the module around the token table numbers positions as RoBERTa does."""
    for module in backbone.modules():
        if any(child is table for child in module.children()):
            positions = getattr(module, "position_embeddings", None)
            return (
                isinstance(positions, nn.Embedding)
                and positions.padding_idx is not None
                and isinstance(getattr(module, "padding_idx", None), int)
            )
    return False
