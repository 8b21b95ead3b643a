"""Backbones with fresh weights, and the class behind an architecture."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from clbench.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def random_backbone(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """A backbone with fresh weights; leaves torch's random state as it was.

    Raises
    ------
    ModelError
        If transformers has no model for `config`.
    """
    kind = backbone_class(config, str(config.model_type))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = kind(config, **without_pooler(kind))
    return model.float().eval()


def backbone_class(config: PreTrainedConfig, name: str) -> type[PreTrainedModel]:
    """The class of transformers for an architecture without any head.

    Raises
    ------
    ModelError
        If transformers has none for `config`.
    """
    from transformers import MODEL_MAPPING

    try:
        kind = MODEL_MAPPING[type(config)]
    except KeyError as fault:
        raise ModelError(
            f"model {name!r}: transformers has no plain model for {config.model_type!r}."
        ) from fault
    chosen: type[PreTrainedModel] = kind[0] if isinstance(kind, (tuple, list)) else kind
    return chosen


def without_pooler(kind: type[PreTrainedModel]) -> dict[str, Any]:
    """Arguments that leave a pooler out, where the architecture has one."""
    accepted = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    return {"add_pooling_layer": False} if accepted else {}
