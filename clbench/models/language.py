"""Load pretrained models with their language-model head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from clbench.errors import ModelError
from clbench.models.checkpoint import read_config, read_weights
from clbench.models.locate import local_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
