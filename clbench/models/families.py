"""What differs between architectures: layers, embeddings, pooling, inputs, and the last layer."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from clbench.core.errors import ModelError

LastLayer = Callable[[Any, Tensor, Tensor | None], Tensor]
"""Layer, states of shape (b, t, h) and mask of shape (b, 1, t, t) to states (b, 1, h)."""
ELSEWHERE = {
    "deberta-v2": {
        "encoder.conv.": "layer.0",  # adds to the output of the first layer
        "encoder.LayerNorm.": "embeddings",  # normalises relative positions
    }
}
"""Groups of parameters that their names do not tell, by ``model_type`` and prefix."""
FROM_PADDING = {
    *("camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm"),
    *("mpnet", "xmod"),
}
"""Types besides RoBERTa's that count positions from the number of the padding token on."""
_EMBEDDING_LIKE = re.compile(
    r"(^|[._])(w[tp]e|embed\w*|\w*embeddings?|relative_attention_bias)([._]|$)"
)


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
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Prefixes of other parameters outside the lists, with their group."""
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
        for prefix, group in self.elsewhere.items():
            if parameter.startswith(prefix):
                return group
        return "embeddings" if parameter.startswith(self.embeddings) else "head"


def family_of(backbone: transformers.PreTrainedModel) -> Family:
    """Return the family of a loaded backbone (without any head).

    The longest list of modules is its layers.

    Raises
    ------
    ModelError
        If it has no list of layers, is not a text model, or is an encoder with a decoder.
    """
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
    weight = getattr(table, "weight", None)
    if table is None or not isinstance(weight, Tensor) or weight.dim() != 2:
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
    causal = getattr(config, "is_decoder", False) or (
        name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and name not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )
    return Family(
        layers,
        _embedding_prefixes(backbone),
        pooling="last" if causal else "first",
        parallel=tuple(parallel),
        elsewhere=ELSEWHERE.get(name, {}),
        offset_positions=_offset_positions(backbone, table),
        options={"use_cache": False} if getattr(config, "use_cache", False) else {},
        last_layer=None if causal else LAST_LAYERS.get(name),
    )


def family_of_whole(model: transformers.PreTrainedModel) -> Family:
    """Return the family of a model with a head: that of its body, with paths from the whole."""
    if getattr(model.config, "is_encoder_decoder", False):
        parts = [name for name, _ in model.named_modules() if name.endswith((".block", ".layers"))]
        encoder, decoder = (
            next((path for path in parts if part in path.split(".")), None)
            for part in ("encoder", "decoder")
        )
        if encoder is None or decoder is None:
            raise ModelError(
                f"clbench does not know the layers of encoder-decoders of type "
                f"{model.config.model_type!r}. Use a model such as T5, or a decoder."
            )
        return Family(encoder, _embedding_prefixes(model), parallel=(decoder,))
    family, prefix = family_of(model.base_model), f"{model.base_model_prefix}."
    return replace(
        family,
        layers=prefix + family.layers,
        embeddings=tuple(prefix + name for name in family.embeddings),
        parallel=tuple(prefix + name for name in family.parallel),
        elsewhere={prefix + name: group for name, group in family.elsewhere.items()},
    )


def _embedding_prefixes(model: nn.Module) -> tuple[str, ...]:
    return tuple(
        f"{path}."
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) or _EMBEDDING_LIKE.search(path)
    )


def reads_segments(config: transformers.PreTrainedConfig) -> bool:
    """Whether the model has segments; GPT-2 would look ``token_type_ids`` up as words."""
    return int(getattr(config, "type_vocab_size", None) or 0) > 1


def usable_length(config: transformers.PreTrainedConfig) -> int | None:
    """Return the most tokens that a row may have, special ones included; None if unlimited.

    RoBERTa's table of 514 positions begins after the padding number 1, so 512 are usable.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    if "roberta" in config.model_type or config.model_type in FROM_PADDING:
        return positions - int(config.pad_token_id or 0) - 1
    return positions


def output_width(config: transformers.PreTrainedConfig | Any) -> int:
    """Return the length of a token's last hidden state; some sizes of OPT project it."""
    return int(getattr(config, "word_embed_proj_dim", None) or config.hidden_size)


def attention_window(config: transformers.PreTrainedConfig) -> int | None:
    """Return the fewest tokens that a layer attends to; None if all of them see the whole text."""
    text = config.get_text_config()
    names = ("sliding_window", "attention_chunk_size", "window_size")
    found = [getattr(text, name, None) for name in names]
    return min((n for n in found if isinstance(n, int) and n > 0), default=None)


def _offset_positions(backbone: nn.Module, table: nn.Module) -> bool:
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


# The last layer for the first token alone, if the pooling reads nothing else: the other tokens then
# need only keys and values there, no query, attention, output or feed-forward part. The pooled
# vector is the same up to rounding; a model with six layers saves a sixth of its work, one with
# twelve a twelfth (``benchmarks/engine.py``).

TOKENWISE = frozenset(
    (
        *(nn.Linear, nn.LayerNorm, nn.Dropout, nn.Identity, nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh),
        *(nn.ModuleList, nn.ModuleDict, nn.ParameterDict),
    )
)
"""Modules of torch that treat every token alike."""
STOCK = (
    "transformers.",
    "peft.tuners.lora.",
    "clbench.training.dropout",
    "clbench.training.attention",
)
"""Packages whose modules compute what this module assumes."""
HOOKS = ("forward", "forward_pre", "backward", "backward_pre")


def is_stock(backbone: nn.Module, layers: str) -> bool:
    """Whether the last layer computes what its architecture does, and nothing observes it.

    False if there is a hook on the layer, above or inside it, a replaced `forward`, a module from
    another package, or a custom attention function. `layers` is the path of the list of layers,
    such as ``encoder.layer``.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attention = getattr(backbone.config, "_attn_implementation", "eager")
    path: list[Any] = [backbone]
    for name in layers.split("."):
        path.append(path[-1].get_submodule(name))
    inside = list(path[-1][-1].modules())
    return (
        not any(getattr(torch_module, f"_global_{kind}_hooks") for kind in HOOKS)
        and not any(
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or "forward" in vars(module)
            for module in (*path, *inside)
        )
        and all(
            type(module) in TOKENWISE or type(module).forward.__module__.startswith(STOCK)
            for module in inside
        )
        and (  # an attention that is not registered is part of the model's own code
            attention not in ALL_ATTENTION_FUNCTIONS
            or ALL_ATTENTION_FUNCTIONS[attention].__module__.startswith(STOCK)
        )
    )


@contextmanager
def only_first_token(layer: nn.Module, forward: LastLayer) -> Iterator[None]:
    """Make `layer` compute `forward` inside the context.

    It computes every token if the mask is not a dense tensor, as with some attention kernels, or
    if gradient checkpointing runs the layer again in the backward pass.
    """
    whole = layer.forward

    def first(states: Tensor, attention_mask: Any = None, *rest: Any, **options: Any) -> Any:
        if not (attention_mask is None or getattr(attention_mask, "ndim", 0) == 4):
            return whole(states, attention_mask, *rest, **options)
        return forward(layer, states, attention_mask)

    if getattr(layer, "gradient_checkpointing", False):
        yield
        return
    layer.forward = first
    try:
        yield
    finally:
        del layer.forward


def bert_layer(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """Compute a layer of BERT, RoBERTa or ELECTRA, normalised after its two parts."""
    own = layer.attention.self
    first = _first(states)
    context = _attend(own, (own.query(first), own.key(states), own.value(states)), mask)
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(context, first))
    return output


def distilbert_layer(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """Compute a layer of DistilBERT."""
    own = layer.attention
    first = _first(states)
    context = _attend(own, (own.q_lin(first), own.k_lin(states), own.v_lin(states)), mask)
    attended = layer.sa_layer_norm(own.out_lin(context) + first)
    output: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
    return output


LAST_LAYERS: dict[str, LastLayer] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), bert_layer),
    "distilbert": distilbert_layer,
}
"""By ``model_type``."""


def _first(states: Tensor) -> Tensor:
    """Return the first token's states, shape (b, 1, h), contiguous.

    On a strided tensor, under torch's dispatch modes, a dense layer adds its bias in another
    order, which changes the last bits.
    """
    return states[:, :1].contiguous()


def _attend(own: Any, parts: tuple[Tensor, Tensor, Tensor], mask: Tensor | None) -> Tensor:
    """Return the first token's attention, shape (b, 1, h); `parts` are query, keys and values."""
    query, key, value = (
        part.reshape(*part.shape[:2], -1, own.attention_head_size).transpose(1, 2) for part in parts
    )
    scores = torch.matmul(query * own.scaling, key.transpose(2, 3))
    if mask is not None:
        first = mask[:, :, :1]
        if first.dtype == torch.bool:
            scores = scores.masked_fill(~first, torch.finfo(scores.dtype).min)
        else:
            scores = scores + first
    weights = own.dropout(torch.softmax(scores, dim=-1, dtype=scores.dtype))
    context: Tensor = torch.matmul(weights, value).transpose(1, 2).flatten(2)
    return context
