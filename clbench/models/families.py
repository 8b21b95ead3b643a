"""What differs between architectures: layers, embeddings, pooling and inputs.

Common architectures have a `Family` record. For any other, `inspect_backbone` derives one from
the model itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from clbench.core.errors import ModelError
from clbench.models.last_layer import LastLayer, bert_layer, distilbert_layer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Family:
    """The places of layers and embeddings in models of one architecture, and their inputs."""

    layers: str
    """Path of the list of encoder or decoder layers inside the backbone."""
    embeddings: tuple[str, ...]
    """Prefixes of the parameters before the first layer, and of position tables in layers."""
    pooling: Literal["first", "last"] = "first"
    """``first`` token, or ``last`` real token for causal decoders."""
    parallel: tuple[str, ...] = ()
    """Paths of further lists with parts of the same layers (XLM)."""
    within_layer: Mapping[str, int] = field(default_factory=dict)
    """Prefixes of parameters outside the list, with the number of their layer."""
    offset_positions: bool = False
    """Whether position numbers start after the number of the padding token, as in RoBERTa."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Additional arguments of every forward pass."""
    last_layer: LastLayer | None = None
    """Computes the last layer for the first token alone; None computes it whole."""

    def group_of(self, parameter: str) -> str:
        """Return ``embeddings``, ``layer.<number>`` or ``head`` for a backbone parameter."""
        for path in (self.layers, *self.parallel):
            if parameter.startswith(f"{path}."):
                return f"layer.{parameter[len(path) + 1 :].partition('.')[0]}"
        for prefix, number in self.within_layer.items():
            if parameter.startswith(prefix):
                return f"layer.{number}"
        return "embeddings" if parameter.startswith(self.embeddings) else "head"


_BERT = Family("encoder.layer", ("embeddings.",), last_layer=bert_layer)
_ROBERTA = replace(_BERT, offset_positions=True)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Family("transformer.layer", ("embeddings.",), last_layer=distilbert_layer),
    "albert": Family(
        "encoder.albert_layer_groups",  # one entry per group of layers that share weights
        ("embeddings.", "encoder.embedding_hidden_mapping_in."),
    ),
    "electra": replace(_BERT, embeddings=("embeddings.", "embeddings_project.")),
    "deberta-v2": Family(
        "encoder.layer",
        ("embeddings.", "encoder.rel_embeddings.", "encoder.LayerNorm."),
        within_layer={"encoder.conv.": 0},  # the convolution adds to the first layer's output
    ),
    "modernbert": Family("layers", ("embeddings.",)),
    "gpt2": Family("h", ("wte.", "wpe."), pooling="last", options={"use_cache": False}),
}
"""By ``model_type``."""
_EMBEDDING_LIKE = re.compile(
    r"(^|[._])(w[tp]e|embed\w*|\w*embeddings?|relative_attention_bias)([._]|$)"
)


def family_of(backbone: PreTrainedModel) -> Family:
    """Return the family of a loaded backbone (without any head).

    Raises
    ------
    ModelError
        If it has no list of layers, is not a text model, or is an encoder with a decoder.
    """
    family = FAMILIES.get(backbone.config.model_type) or inspect_backbone(backbone)
    if family.pooling == "first" and getattr(backbone.config, "is_decoder", False):
        return replace(family, pooling="last", last_layer=None)
    return family


def inspect_backbone(backbone: PreTrainedModel) -> Family:
    """Return the family of an unknown architecture: the longest list of modules is its layers."""
    from transformers.models.auto import modeling_auto as auto

    config = backbone.config
    name = str(config.model_type)
    if getattr(config, "is_encoder_decoder", False) and hasattr(backbone, "decoder"):
        raise ModelError(
            f"models of type {name!r} have both an encoder and a decoder. Use an encoder, or a "
            "decoder alone."
        )
    try:
        table: nn.Module | None = backbone.get_input_embeddings()
    except NotImplementedError:
        table = None
    if not isinstance(table, nn.Embedding):
        raise ModelError(f"models of type {name!r} have no token embeddings. Use a text model.")
    lists: dict[str, int] = {}
    for path, module in backbone.named_modules():
        # A list inside another one, such as the experts of a layer, does not hold layers.
        inner = path.startswith(tuple(f"{outer}." for outer in lists))
        if isinstance(module, nn.ModuleList) and [*module.parameters()] and not inner:
            lists[path] = len(module)
    if not lists:
        raise ModelError(
            f"models of type {name!r} cannot be divided into layers: {type(backbone).__name__} "
            "has no list of modules. Use another architecture."
        )
    layers, *parallel = (path for path, size in lists.items() if size == max(lists.values()))
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
    causal = (
        name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and name not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )
    return Family(
        layers,
        embeddings,
        pooling="last" if causal else "first",
        parallel=tuple(parallel),
        offset_positions=_offset_positions(backbone, table),
        options={"use_cache": False} if getattr(config, "use_cache", False) else {},
    )


def reads_segments(config: PreTrainedConfig) -> bool:
    """Whether the model has segments; GPT-2 would look ``token_type_ids`` up as words."""
    return int(getattr(config, "type_vocab_size", None) or 0) > 1


def usable_length(config: PreTrainedConfig) -> int | None:
    """Return the most tokens that a row may have, special ones included; None if unlimited.

    RoBERTa's table of 514 positions begins after the padding number 1, so 512 are usable.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    kind = config.model_type
    if "roberta" in kind or kind in {"camembert", "data2vec-text", "esm", "longformer", "mpnet"}:
        return positions - int(config.pad_token_id or 0) - 1
    return positions


def attention_window(config: PreTrainedConfig) -> int | None:
    """Return the fewest tokens that a layer attends to; None if all of them see the whole text."""
    text = config.get_text_config()
    names = ("sliding_window", "attention_chunk_size", "window_size")
    found = [getattr(text, name, None) for name in names]
    return min((n for n in found if isinstance(n, int) and n > 0), default=None)


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
