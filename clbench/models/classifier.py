"""A backbone with one dense head a label space."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clbench.errors import ModelError, did_you_mean
from clbench.models.families import Family, family_of, reads_segments
from clbench.models.groups import LayerGroup, layer_groups_of
from clbench.models.last_layer import is_stock, only_first_token
from clbench.models.pooling import POOLS, Pooling
from clbench.models.random_init import random_backbone

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Classifier(nn.Module):
    """A backbone, its pooling, and heads by name.

    Attributes
    ----------
    backbone
        The transformers model, without a head of its own.
    heads
        Dense layers by `head_key`; use `head` to get one by its name.
    config
        The backbone's configuration.
    vocabulary
        Shape (v,): original numbers of the rows of a trimmed embedding table, or None for
        the whole table.
    family
        How the architecture is taken apart.
    """

    vocabulary: Tensor | None
    positions: Tensor | None

    def __init__(
        self,
        backbone: PreTrainedModel,
        heads: Mapping[str, int],
        *,
        head_seed: Callable[[str], int],
        pooling: Pooling = "auto",
        head_dropout: float = 0.0,
        vocabulary: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.family: Family = family_of(backbone)
        self.config: PreTrainedConfig = backbone.config
        self.backbone = backbone
        self.heads = nn.ModuleDict(
            {
                head_key(name): self._new_head(width, head_seed(name))
                for name, width in heads.items()
            }
        )
        self.dropout = nn.Dropout(head_dropout) if head_dropout else nn.Identity()
        kind = self.family.pooling if pooling == "auto" else pooling
        self._pool = POOLS[kind]
        self._last_layer = self.family.first_token if kind == "first" else None
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        self.register_buffer("positions", self._position_numbers(), persistent=False)
        accepted = inspect.signature(backbone.forward).parameters
        self._segments = "token_type_ids" in accepted and reads_segments(backbone.config)
        self._options = dict(self.family.options)

    def features(self, inputs: Mapping[str, Tensor], inputs_embeds: Tensor | None = None) -> Tensor:
        """One pooled vector a row, shape (b, h).

        Parameters
        ----------
        inputs
            ``input_ids`` and ``attention_mask``, shape (b, t), padded on the right;
            ``token_type_ids`` is passed on where the backbone reads it.
        inputs_embeds
            Shape (b, t, e): word embeddings in place of ``input_ids``; see `embed`.
        """
        mask = inputs.get("attention_mask")
        arguments: dict[str, Any] = {"attention_mask": mask, **self._options}
        if inputs_embeds is None:
            ids = inputs["input_ids"]
            arguments["input_ids"] = ids
        else:
            ids = inputs_embeds
            arguments["inputs_embeds"] = inputs_embeds
        if self._segments and "token_type_ids" in inputs:
            arguments["token_type_ids"] = inputs["token_type_ids"]
        if self.positions is not None:
            arguments["position_ids"] = self.positions[:, : ids.shape[1]]
        with self._shortcut():
            hidden = self.backbone(**arguments).last_hidden_state
        return self._pool(hidden, mask)

    def forward(
        self, inputs: Mapping[str, Tensor], head: str, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Outputs of one head, shape (b, outputs): logits, or one number for regression.

        The head computes in its own precision, also under autocast: bf16 would give targets
        near 3 in steps of 1/64.
        """
        layer = self.heads[head_key(head)]
        pooled = self.dropout(self.features(inputs, inputs_embeds))
        with torch.autocast(pooled.device.type, enabled=False):
            outputs: Tensor = layer(pooled.to(next(layer.parameters()).dtype))
        return outputs

    def embed(self, input_ids: Tensor) -> Tensor:
        """Word embeddings only, shape (b, t, e): what `forward` takes as `inputs_embeds`."""
        embedded: Tensor = self.backbone.get_input_embeddings()(input_ids)
        return embedded

    def head(self, name: str) -> nn.Module:
        """The head of that name.

        Raises
        ------
        ModelError
            If there is none.
        """
        key = head_key(name)
        if key not in self.heads:
            raise ModelError(f"there is no head {name!r}.{did_you_mean(name, self.heads)}")
        return self.heads[key]

    def head_parameter_names(self, name: str) -> list[str]:
        """Names of one head's parameters, as in `named_parameters`."""
        return [f"heads.{head_key(name)}.{p}" for p, _ in self.head(name).named_parameters()]

    def backbone_parameters(self) -> dict[str, nn.Parameter]:
        """The backbone's parameters by their names in `named_parameters`."""
        return {
            name: value for name, value in self.named_parameters() if name.startswith("backbone.")
        }

    def layer_groups(self) -> list[LayerGroup]:
        """Every parameter once: ``embeddings``, ``layer.0`` …, and ``head`` for the rest."""
        return layer_groups_of(self, self.family, "backbone.")

    def randomise_backbone(self, seed: int) -> None:
        """Give the backbone a fresh initialisation, as its architecture draws it.

        A trimmed table gets the rows that the whole table would have got.
        """
        fresh = random_backbone(self.config, seed)
        values = dict(fresh.named_parameters())
        table = fresh.get_input_embeddings().weight
        with torch.no_grad():
            for name, parameter in self.backbone.named_parameters():
                value = values[name]
                if self.vocabulary is not None and value is table:
                    value = value[self.vocabulary.to(value.device)]
                parameter.copy_(value)

    def _shortcut(self) -> AbstractContextManager[None]:
        """The last layer computes what the pooling reads, and no more."""
        if self._last_layer is None or not is_stock(self.backbone, self.family.layers):
            return nullcontext()
        layers: Any = self.backbone.get_submodule(self.family.layers)
        return only_first_token(layers[-1], self._last_layer)

    def _new_head(self, width: int, seed: int) -> nn.Linear:
        """Normal weights of the backbone's own spread and no bias, as transformers does."""
        generator = torch.Generator().manual_seed(seed)
        spread = float(getattr(self.config, "initializer_range", None) or 0.02)
        with torch.device("meta"):  # draws nothing from torch's own stream
            layer = nn.Linear(int(self.config.hidden_size), width)
        layer.to_empty(device="cpu")
        with torch.no_grad():
            layer.weight.normal_(0.0, spread, generator=generator)
            layer.bias.zero_()
        return layer

    def _position_numbers(self) -> Tensor | None:
        """Explicit position numbers where the backbone would derive them from padding ids.

        They stay right when ids are positions in a trimmed vocabulary or are replaced by
        embeddings. Padded tokens differ from the backbone's own numbering, which no real
        token sees.
        """
        if not self.family.offset_positions:
            return None
        start = int(self.config.pad_token_id or 0) + 1
        return torch.arange(start, int(self.config.max_position_embeddings))[None]


def head_key(name: str) -> str:
    """Key of a head in `Classifier.heads`; names that a module cannot have are altered."""
    key = name.replace(".", "\N{ONE DOT LEADER}")
    return f"{key} " if hasattr(nn.ModuleDict, key) or key in ("", "training") else key
