"""Load pretrained models with their language-model head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import torch

from clbench.core.errors import ModelError
from clbench.models.checkpoint import read_config, read_weights
from clbench.models.locate import local_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class LanguageModel:
    """A model with a language-model head."""

    model: PreTrainedModel
    """In float32 and evaluation mode, on the CPU."""
    loss: Literal["mlm", "clm"]
    """``mlm`` for encoders, ``clm`` for causal decoders."""
    missing: tuple[str, ...]
    """Weights of the head that the checkpoint lacks; they are initialised at random."""

    def backbone_names(self) -> dict[str, str]:
        """Return the backbone's weight names in this model, mapped to those in the backbone."""
        prefix = f"{self.model.base_model_prefix}."
        return {
            name: name.removeprefix(prefix)
            for name, _ in self.model.named_parameters()
            if name.startswith(prefix)
        }


def load_language_model(
    name: str, revision: str | None = None, *, head_seed: int = 0
) -> LanguageModel:
    """Return a pretrained model with the head that it was pretrained with.

    Parameters
    ----------
    name, revision
        As in `clbench.models.locate.local_folder`.
    head_seed
        Seed of the head's weights that the checkpoint lacks.

    Raises
    ------
    ModelError
        As `clbench.models.checkpoint.load_backbone`, or if transformers has no language-model
        head for the architecture.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    folder = local_folder(name, revision)
    config = read_config(folder, name, weights=True, tokenizer=False)
    loss: Literal["mlm", "clm"] = "mlm"
    decoder = getattr(config, "is_decoder", False)
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not decoder:
        kind = MODEL_FOR_MASKED_LM_MAPPING[type(config)]
    elif type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind, loss = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "clm"
    else:
        raise ModelError(
            f"model {name!r}: transformers has no language-model head for {config.model_type!r}, "
            "which ewc-mlm, generic-replay and the shift pretraining need. Use another model."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(head_seed)
        model, report = read_weights(kind, config, folder, name)
    return LanguageModel(model, loss, tuple(sorted(report["missing_keys"])))


def load_generator(name: str, revision: str | None = None) -> PreTrainedModel:
    """Return a pretrained decoder or encoder-decoder with its language-model head.

    Raises
    ------
    ModelError
        As `clbench.models.checkpoint.load_backbone`, or if the model is an encoder, or the
        checkpoint lacks the head.
    """
    folder = local_folder(name, revision)
    config = read_config(folder, name, weights=True, tokenizer=False)
    model, report = read_weights(_generator_class(config, name), config, folder, name)
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"model {name!r}: its checkpoint has no language-model head ({missing[0]!r} is "
            "missing). Use one with a head, or head = 'classification'."
        )
    return model


def random_language_model(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Return a model of the same kind with random weights; torch's random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return type(model)(model.config).float().eval()


def _generator_class(config: PreTrainedConfig, name: str) -> type[PreTrainedModel]:
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_MASKED_LM_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    )

    kind, encodes = type(config), bool(getattr(config, "is_encoder_decoder", False))
    if encodes and kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return cast("type[PreTrainedModel]", MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[kind])
    is_encoder = kind in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if encodes or is_encoder or kind not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(
            f"model {name!r}: {config.model_type!r} has no language-model head that writes text. "
            "Use a decoder, or head = 'classification'."
        )
    return cast("type[PreTrainedModel]", MODEL_FOR_CAUSAL_LM_MAPPING[kind])
