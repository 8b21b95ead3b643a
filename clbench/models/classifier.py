"""A backbone, its pooling, and one dense head per label space."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from clbench.core.errors import ModelError, did_you_mean
from clbench.models.checkpoint import load_backbone, random_model
from clbench.models.encoding import trim_embeddings
from clbench.models.families import (
    Family,
    family_of,
    is_stock,
    only_first_token,
    output_width,
    reads_segments,
)
from clbench.models.groups import LayerGroup, layer_groups_of
from clbench.tasks.task import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pooling = Literal["auto", "first", "last", "mean"]


def first_token(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return the vector of each row's first token ([CLS] or its like).

    All poolings take the hidden states of right-padded rows, shape (b, t, h), and a mask of
    shape (b, t), 1 for real tokens, or None if all are real; they return shape (b, h).
    """
    return hidden[:, 0]


def last_token(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return the vector of each row's last real token, which in a decoder has seen them all."""
    if mask is None:
        return hidden[:, -1]
    # The running count of real tokens first reaches its maximum at the last real one.
    last = mask.cumsum(1).argmax(1)
    rows = last[:, None, None].expand(-1, 1, hidden.shape[2])
    return hidden.gather(1, rows).squeeze(1)


def mean_token(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over each row's real tokens, in float32."""
    if mask is None:
        return hidden.float().mean(1)
    real = mask.to(hidden.device).unsqueeze(2).float()
    return (hidden.float() * real).sum(1) / real.sum(1).clamp(min=1.0)


Insert = Callable[[dict[str, Tensor], Tensor | None], tuple[dict[str, Tensor], Tensor]]
POOLS = {"first": first_token, "last": last_token, "mean": mean_token}


def head_key(name: str) -> str:
    """Return the key of head `name` in `Classifier.heads`; names that torch forbids are altered."""
    key = name.replace(".", "\N{ONE DOT LEADER}")
    return f"{key} " if hasattr(nn.ModuleDict, key) or key in ("", "training") else key


@contextmanager
def evaluating(model: nn.Module, trained: Iterable[nn.Parameter] | None = None) -> Iterator[None]:
    """Put a model into evaluation mode meanwhile; only `trained`, if given, requires gradients."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [] if trained is None else [(p, p.requires_grad) for p in model.parameters()]
    ids = {id(parameter) for parameter in trained or ()}
    model.eval()
    for parameter, _ in flags:
        parameter.requires_grad_(id(parameter) in ids)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


class TaskModel(nn.Module):
    """A backbone with heads: what methods, the engine and scoring ask of a model.

    Attributes
    ----------
    backbone
        The transformers model, without a head of its own unless it answers in words.
    family
        Where the architecture has its layers and embeddings.
    config
        The backbone's configuration.
    heads
        Modules by `head_key`; use `head` to get one by its name.
    shown
        Number of outputs in use, the first ones, of heads that grow.
    insert
        Function that extends the inputs and embeddings of `features`, as prompts do; or None.
    dropout
        Between pooled vector and head.
    vocabulary
        Shape (v,): original token numbers of the rows of a trimmed embedding table, or None
        for the whole table.
    """

    vocabulary: Tensor | None

    def __init__(
        self, backbone: PreTrainedModel, family: Family, *, vocabulary: Tensor | None = None
    ) -> None:
        super().__init__()
        self.family, self.config = family, backbone.config
        self.backbone = backbone
        self.heads = nn.ModuleDict()
        self.shown: dict[str, int] = {}
        self.insert: Insert | None = None
        self.dropout: nn.Module = nn.Identity()
        self.register_buffer("vocabulary", vocabulary, persistent=False)

    def pooled(self, inputs: Mapping[str, Tensor], inputs_embeds: Tensor | None = None) -> Tensor:
        """Return one vector per row, shape (b, h)."""
        raise NotImplementedError

    def randomise_backbone(self, seed: int) -> None:
        """Reinitialise the backbone as its architecture does.

        A trimmed table gets the rows that the whole table would get.
        """
        backbone = random_model(self.config, seed, type(self.backbone))
        values = dict(backbone.named_parameters())
        table = backbone.get_input_embeddings().weight
        with torch.no_grad():
            for name, parameter in self.backbone.named_parameters():
                value = values[name]
                if self.vocabulary is not None and value is table:
                    value = value[self.vocabulary.to(value.device)]
                parameter.copy_(value)

    def growing_outputs(self) -> dict[str, int] | None:
        """Return the outputs in use by the names of the weights of heads that grow.

        None if how far a head will grow matters already.
        """
        return None if self.shown else {}

    def features(self, inputs: dict[str, Tensor], inputs_embeds: Tensor | None = None) -> Tensor:
        """Return one pooled vector per row, with what `insert` adds; arguments as in `pooled`."""
        if self.insert is not None:
            inputs, inputs_embeds = self.insert(inputs, inputs_embeds)
        return self.pooled(inputs, inputs_embeds)

    def apply_head(self, pooled: Tensor, head: str) -> Tensor:
        """Return the outputs of one head for pooled vectors of shape (b, h), shape (b, outputs).

        Only outputs in use are returned, as `shown` says. For vectors of shape (b, k, h) they are
        of shape (b, k), or (b, k, outputs) if the head is not that of a multiple-choice task.

        The head computes in its own precision, also under autocast: bfloat16 would give targets
        near 3 in steps of 1/64.
        """
        layer = self.heads[head_key(head)]
        with torch.autocast(pooled.device.type, enabled=False):
            outputs: Tensor = layer(pooled.to(next(layer.parameters()).dtype))
        outputs = outputs[..., : self.shown.get(head)]
        return outputs.squeeze(-1) if pooled.dim() == 3 and outputs.shape[-1] == 1 else outputs

    def embed(self, input_ids: Tensor) -> Tensor:
        """Return word embeddings, shape (b, t, e), which `forward` takes as `inputs_embeds`."""
        embedded: Tensor = self.backbone.get_input_embeddings()(input_ids)
        return embedded

    def head(self, name: str) -> nn.Module:
        """Return the head called `name`; raise a `ModelError` if there is none."""
        key = head_key(name)
        if key not in self.heads:
            raise ModelError(f"the model has no head {name!r}.{did_you_mean(name, self.heads)}")
        return self.heads[key]

    def head_parameter_names(self, name: str) -> list[str]:
        """Return the names of one head's parameters, as in `named_parameters`."""
        return [f"heads.{head_key(name)}.{p}" for p, _ in self.head(name).named_parameters()]

    def heads_but(self, names: Collection[str]) -> set[str]:
        """Return the names of the parameters of all heads but those of `names`."""
        others = {head_key(name) for name in names}
        return {
            f"heads.{key}.{name}"
            for key, head in self.heads.items()
            if key not in others
            for name in head.state_dict()
        }

    def load_some(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights from which those of whole heads, or of unused outputs, may be missing.

        Raises a ModelError if others are missing.
        """
        heads = {f"heads.{key}." for key in self.heads}
        own = self.state_dict()
        weights = dict(weights)
        for name, value in weights.items():
            if name.startswith(tuple(heads)) and name in own and len(value) < len(own[name]):
                weights[name] = torch.cat([value, own[name][len(value) :].to(value)])
        missing, unexpected = self.load_state_dict(weights, strict=False)
        wrong = [name for name in missing if not name.startswith(tuple(heads))]
        if wrong or unexpected:
            raise ModelError(
                f"a stored stage has other weights: {', '.join([*wrong, *unexpected])}"
            )

    def backbone_parameters(self) -> dict[str, nn.Parameter]:
        """Return the backbone's parameters by their names in `named_parameters`."""
        return {
            name: value for name, value in self.named_parameters() if name.startswith("backbone.")
        }

    def layer_groups(self) -> list[LayerGroup]:
        """Return every parameter once, in ``embeddings``, ``layer.0`` … and ``head``."""
        return layer_groups_of(self, self.family, "backbone.")


class Classifier(TaskModel):
    """A backbone, its pooling, and dense heads by name.

    Parameters
    ----------
    heads
        Size of each head by its name.
    head_seed
        Function from a head's name to the seed of its weights, which depend on nothing else.
    pooling
        ``first`` token, ``last`` real token, ``mean`` over real tokens, or ``auto`` by family.
    head_dropout
        Dropout between pooled vector and head.
    vocabulary
        As in `TaskModel`.
    """

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
        super().__init__(backbone, family_of(backbone), vocabulary=vocabulary)
        self._head_seed = head_seed
        for name, size in heads.items():
            self.heads[head_key(name)] = self._new_head(size, head_seed(name))
        if head_dropout:
            self.dropout = nn.Dropout(head_dropout)
        kind = self.family.pooling if pooling == "auto" else pooling
        self._pool = POOLS[kind]
        self._last_layer = self.family.last_layer if kind == "first" else None
        self.register_buffer("positions", self._position_numbers(), persistent=False)
        accepted = inspect.signature(backbone.forward).parameters
        self._segments = "token_type_ids" in accepted and reads_segments(backbone.config)

    def pooled(self, inputs: Mapping[str, Tensor], inputs_embeds: Tensor | None = None) -> Tensor:
        """Return one pooled vector per row, shape (b, h); or per choice, shape (b, k, h).

        Parameters
        ----------
        inputs
            ``input_ids`` and ``attention_mask``, shape (b, t), padded on the right;
            ``token_type_ids`` is passed on if the backbone reads it. For multiple choice of shape
            (b, k, t).
        inputs_embeds
            Shape (b, t, e) or (b, k, t, e): word embeddings in place of ``input_ids``; see
            `embed`.
        """
        ids = inputs["input_ids"]
        if ids.dim() == 3:
            flat = {name: value.flatten(0, 1) for name, value in inputs.items()}
            embeds = None if inputs_embeds is None else inputs_embeds.flatten(0, 1)
            features = self.pooled(flat, embeds)
            return features.view(*ids.shape[:2], -1)
        mask = inputs.get("attention_mask")
        arguments: dict[str, Any] = {"attention_mask": mask, **self.family.options}
        if inputs_embeds is None:
            arguments["input_ids"] = ids
        else:
            arguments["inputs_embeds"] = inputs_embeds
        if self._segments and "token_type_ids" in inputs:
            arguments["token_type_ids"] = inputs["token_type_ids"]
        if self.positions is not None:
            arguments["position_ids"] = self.positions[:, : ids.shape[1]]
        last_layer: AbstractContextManager[None] = nullcontext()
        if self._last_layer is not None and is_stock(self.backbone, self.family.layers):
            layers: Any = self.backbone.get_submodule(self.family.layers)
            last_layer = only_first_token(layers[-1], self._last_layer)
        with last_layer:
            hidden = self.backbone(**arguments).last_hidden_state
        return self._pool(hidden, mask)

    def forward(
        self, inputs: dict[str, Tensor], head: str, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Return the outputs of one head, shape (b, outputs): logits, or a regression value.

        For multiple choice, whose head has one output, they are a logit for each choice.
        """
        return self.apply_head(self.dropout(self.features(inputs, inputs_embeds)), head)

    def growing_outputs(self) -> dict[str, int] | None:
        """As in `TaskModel`; None if a head that grows is not a plain dense layer.

        None also if its unused outputs have moved from their initial values, as by weight decay.
        """
        used: dict[str, int] = {}
        for name, count in self.shown.items():
            layer = dict(self.heads).get(head_key(name))
            if type(layer) is not nn.Linear:
                return None
            initial = self._new_head(layer.out_features, self._head_seed(name)).state_dict()
            for key, value in layer.state_dict().items():
                if not torch.equal(value[count:].cpu(), initial[key][count:]):
                    return None
            used |= dict.fromkeys(self.head_parameter_names(name), count)
        return used

    def _new_head(self, width: int, seed: int) -> nn.Linear:
        """Return a dense layer with the backbone's initial spread and zero bias."""
        generator = torch.Generator().manual_seed(seed)
        spread = float(getattr(self.config, "initializer_range", None) or 0.02)
        with torch.device("meta"):  # draws nothing from torch's own stream
            layer = nn.Linear(output_width(self.config), width)
        layer.to_empty(device="cpu")
        with torch.no_grad():
            layer.weight.normal_(0.0, spread, generator=generator)
            layer.bias.zero_()
        return layer

    def _position_numbers(self) -> Tensor | None:
        """Return position numbers, shape (1, t), if the backbone derives them from padding ids.

        They stay correct when ids are positions in a trimmed vocabulary, or embeddings take
        their place. Only padding gets other numbers, which affects no real token.
        """
        if not self.family.offset_positions:
            return None
        start = int(self.config.pad_token_id or 0) + 1
        return torch.arange(start, int(self.config.max_position_embeddings))[None]


def build_classifier(
    name: str,
    *,
    revision: str | None = None,
    heads: Mapping[str, int],
    vocabulary: IntArray | None = None,
    **options: Any,
) -> Classifier:
    """Return a pretrained backbone, as `load_backbone` does, with newly initialised heads.

    Parameters
    ----------
    name, revision
        As in `clbench.models.locate.local_folder`.
    heads
        Size of each head by its name: the number of classes, 1 for regression.
    vocabulary
        Shape (v,), ascending: trim the embedding table to these tokens; see
        `clbench.models.encoding.trim_embeddings`. None keeps the whole table.
    options
        ``head_seed``, ``pooling`` and ``head_dropout`` of `Classifier`.
    """
    backbone = load_backbone(name, revision)
    tokens = None if vocabulary is None else trim_embeddings(backbone, vocabulary)
    return Classifier(backbone, heads, vocabulary=tokens, **options)
