"""Pretrained models with their language-model head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from clbench.errors import ModelError
from clbench.models.config import one_line, quiet, read_config
from clbench.models.locate import local_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class LanguageModel:
    """A model and what is to be known of its head.

    Attributes
    ----------
    model
        In float32 and evaluation mode, on the CPU.
    loss
        ``mlm`` for encoders, ``clm`` for causal decoders.
    missing
        Weights of the head that the checkpoint lacks; they are random.
    """

    model: PreTrainedModel
    loss: Literal["mlm", "clm"]
    missing: tuple[str, ...]

    def backbone_names(self) -> dict[str, str]:
        """Names of the weights below the head: in this model, to those in the backbone."""
        prefix = f"{self.model.base_model_prefix}."
        return {
            name: name.removeprefix(prefix)
            for name, _ in self.model.named_parameters()
            if name.startswith(prefix)
        }


def load_language_model(
    name: str, revision: str | None = None, *, head_seed: int = 0
) -> LanguageModel:
    """The pretrained model with the head that its kind was pretrained with.

    Parameters
    ----------
    name, revision
        A built-in model, a local folder or a hub model; revision of a hub model.
    head_seed
        Decides the weights of a head that the checkpoint lacks.

    Raises
    ------
    ModelError
        As `clbench.models.load.load_backbone`, or if transformers has no language-model
        head for the architecture.
    """
    folder = local_folder(name, revision)
    config = read_config(folder, name, weights=True)
    kind, loss = _class_of(config, name)
    with (
        quiet(),
        one_line(name, f"its weights in {folder} cannot be loaded"),
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(head_seed)
        model, report = kind.from_pretrained(
            str(folder),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    prefix = f"{model.base_model_prefix}."
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key.split("."))
    lost = [key for key in missing if key.startswith(prefix)]
    if lost:
        raise ModelError(
            f"model {name!r}: its weights lack {len(lost)} of the tensors of {kind.__name__}, "
            f"such as {lost[0]!r}. The file belongs to another architecture or is cut short."
        )
    return LanguageModel(model.eval(), loss, tuple(missing))


def _class_of(config: object, name: str) -> tuple[type[PreTrainedModel], Literal["mlm", "clm"]]:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    decoder = bool(getattr(config, "is_decoder", False))
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not decoder:
        masked: type[PreTrainedModel] = MODEL_FOR_MASKED_LM_MAPPING[type(config)]
        return masked, "mlm"
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        causal: type[PreTrainedModel] = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        return causal, "clm"
    raise ModelError(
        f"model {name!r}: transformers has no language-model head for it "
        f"({getattr(config, 'model_type', '?')}), which ewc-mlm needs."
    )
