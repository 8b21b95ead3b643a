"""Tokenizers, backbones and whole classifiers from a name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from clbench.errors import ModelError
from clbench.models.classifier import Classifier
from clbench.models.locate import local_folder
from clbench.models.pooling import Pooling
from clbench.models.safety import check_folder
from clbench.models.trim import trim_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, padding on the right.

    A tokenizer without a padding token (GPT-2) pads with its end-of-text token; the
    attention mask hides it.

    Parameters
    ----------
    name
        A built-in model, a local folder or a hub model.
    revision
        Of a hub model.

    Raises
    ------
    ModelError
        If the model cannot be found, has no tokenizer, or needs a package or code that is
        not there.
    """
    from transformers import AutoTokenizer

    folder = local_folder(name, revision)
    check_folder(folder, name, weights=False)
    with _quiet(), _one_line(name, "its tokenizer cannot be loaded", _tokenizer_hint):
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"model {name!r}: its tokenizer has neither a padding nor an end token. Set "
                f"pad_token in {folder / 'tokenizer_config.json'}."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(
    name: str, revision: str | None = None, *, weights: bool = False
) -> PreTrainedConfig:
    """The configuration of a model, its folder checked.

    Parameters
    ----------
    name, revision
        As in `load_tokenizer`.
    weights
        Whether the folder must hold weights that can be read.

    Raises
    ------
    ModelError
        If the model cannot be found or used.
    """
    return _read_config(local_folder(name, revision), name, weights)


def load_backbone(
    name: str, revision: str | None = None, *, random_seed: int | None = None
) -> PreTrainedModel:
    """The model without any head, in float32 and evaluation mode, on the CPU.

    Parameters
    ----------
    name, revision
        As in `load_tokenizer`.
    random_seed
        Draw fresh weights from this seed, as the architecture does, and read none.

    Raises
    ------
    ModelError
        If the model cannot be found, is of an unknown kind, its weights are not there as
        safetensors, do not fit, or lack a part of the backbone.
    """
    folder = local_folder(name, revision)
    config = _read_config(folder, name, weights=random_seed is None)
    if random_seed is not None:
        with _one_line(name, "cannot be built from its config.json"):
            return random_backbone(config, random_seed)
    kind = _backbone_class(config, name)
    with _quiet(), _one_line(name, f"its weights in {folder} cannot be loaded"):
        model, report = kind.from_pretrained(
            str(folder),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **_without_pooler(kind),
        )
    lost = sorted(key for key in report["missing_keys"] if "pooler" not in key.split("."))
    if lost:
        raise ModelError(
            f"model {name!r}: its weights lack {len(lost)} of the tensors of "
            f"{kind.__name__}, such as {lost[0]!r}. The file belongs to another "
            "architecture or is cut short."
        )
    backbone: PreTrainedModel = model.eval()
    return backbone


def random_backbone(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """A backbone with fresh weights; leaves torch's random state as it was.

    Raises
    ------
    ModelError
        If transformers has no model for `config`.
    """
    kind = _backbone_class(config, str(config.model_type))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = kind(config, **_without_pooler(kind))
    return model.float().eval()


def build_classifier(
    name: str,
    *,
    revision: str | None = None,
    heads: Mapping[str, int],
    head_seed: Callable[[str], int],
    pooling: Pooling = "auto",
    head_dropout: float = 0.0,
    vocabulary: npt.NDArray[np.int64] | None = None,
) -> Classifier:
    """A pretrained backbone with fresh heads.

    Parameters
    ----------
    name, revision
        As in `load_tokenizer`.
    heads
        Width of each head by its name: the number of classes, 1 for regression.
    head_seed
        Seed of a head's weights by its name; nothing else decides them.
    pooling
        ``first`` token, ``last`` real token, ``mean``, or ``auto`` by architecture.
    head_dropout
        Dropout between pooled vector and head.
    vocabulary
        Shape (v,), ascending: cut the embedding table to these tokens; see
        `clbench.models.trim`. None keeps the whole table.

    Raises
    ------
    ModelError
        As `load_backbone`.
    """
    backbone = load_backbone(name, revision)
    kept = None if vocabulary is None else trim_embeddings(backbone, vocabulary)
    return Classifier(
        backbone,
        heads,
        head_seed=head_seed,
        pooling=pooling,
        head_dropout=head_dropout,
        vocabulary=kept,
    )


def _read_config(folder: Path, name: str, weights: bool) -> PreTrainedConfig:
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    kind = check_folder(folder, name, weights=weights)["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"model {name!r}: transformers {__version__} has no architecture {kind!r} "
            f"(key model_type in {folder / 'config.json'})."
        )
    with _quiet(), _one_line(name, f"{folder / 'config.json'} is wrong"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    return config


def _backbone_class(config: PreTrainedConfig, name: str) -> type[PreTrainedModel]:
    from transformers import MODEL_MAPPING

    try:
        kind = MODEL_MAPPING[type(config)]
    except KeyError as fault:
        raise ModelError(
            f"model {name!r}: transformers has no plain model for {config.model_type!r}."
        ) from fault
    chosen: type[PreTrainedModel] = kind[0] if isinstance(kind, (tuple, list)) else kind
    return chosen


def _without_pooler(kind: type[PreTrainedModel]) -> dict[str, Any]:
    import inspect

    accepted = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    return {"add_pooling_layer": False} if accepted else {}


def _tokenizer_hint(text: str) -> str:
    for package in ("sentencepiece", "tiktoken", "protobuf"):
        if package in text.lower():
            return f"It needs the package {package}: pip install sentencepiece protobuf tiktoken."
    return ""


@contextmanager
def _one_line(name: str, what: str, hint: Callable[[str], str] = lambda text: "") -> Iterator[None]:
    """Whatever a checkpoint makes transformers raise, as one line."""
    try:
        yield
    except ModelError:
        raise
    except Exception as fault:
        text = " ".join(str(fault).split()) or type(fault).__name__
        short = text if len(text) <= 300 else f"{text[:299]}…"
        advice = hint(text)
        raise ModelError(f"model {name!r}: {what}: {advice or short}") from fault


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and reports of unused heads off the terminal while loading."""
    from transformers.utils import logging as noise

    logger = logging.getLogger("transformers")
    level, bars = logger.level, noise.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    noise.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            noise.enable_progress_bar()
