"""Backbones and whole classifiers from a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from clbench.errors import ModelError
from clbench.models.classifier import Classifier
from clbench.models.config import load_config as load_config
from clbench.models.config import one_line, quiet, read_config
from clbench.models.families import family_of
from clbench.models.locate import local_folder
from clbench.models.pooling import Pooling
from clbench.models.random_init import backbone_class, random_backbone, without_pooler
from clbench.models.tokenizer import load_tokenizer as load_tokenizer
from clbench.models.trim import trim_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RECOMPUTED = (".position_ids", ".attn.bias", ".attn.masked_bias", ".inv_freq")
"""Ends of the names of buffers that older checkpoints keep and models compute."""


def load_backbone(
    name: str, revision: str | None = None, *, random_seed: int | None = None
) -> PreTrainedModel:
    """The model without any head, in float32 and evaluation mode, on the CPU.

    Parameters
    ----------
    name, revision
        A built-in model, a local folder or a hub model; revision of a hub model.
    random_seed
        Draw fresh weights from this seed, as the architecture does, and read none.

    Raises
    ------
    ModelError
        If the model cannot be found, is of an unknown kind, its weights are not there as
        safetensors, do not fit, or lack a part of the backbone.
    """
    folder = local_folder(name, revision)
    config = read_config(folder, name, weights=random_seed is None)
    if random_seed is not None:
        with one_line(name, "cannot be built from its config.json"):
            return random_backbone(config, random_seed)
    kind = backbone_class(config, name)
    with quiet(), one_line(name, f"its weights in {folder} cannot be loaded"):
        model, report = kind.from_pretrained(
            str(folder),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            # They are refused below, in words that name the tensor.
            ignore_mismatched_sizes=True,
            **without_pooler(kind),
        )
    _check_shapes(report["mismatched_keys"], name, folder)
    lost = sorted(key for key in report["missing_keys"] if "pooler" not in key.split("."))
    if lost:
        raise ModelError(
            f"model {name!r}: its weights lack {len(lost)} of the tensors of "
            f"{kind.__name__}, such as {lost[0]!r}. The file belongs to another "
            "architecture or is cut short."
        )
    _check_taken(report["unexpected_keys"], model, name)
    _check_finite(model, name, folder)
    _check_kind(model, name)
    backbone: PreTrainedModel = model.eval()
    return backbone


def _check_shapes(mismatched: Iterable[tuple[str, Any, Any]], name: str, folder: Path) -> None:
    """Refuse weights of other shapes than ``config.json`` says."""
    wrong = sorted((key, tuple(found), tuple(wanted)) for key, found, wanted in mismatched)
    if wrong:
        key, found, wanted = wrong[0]
        more = f" ({len(wrong) - 1} more tensors likewise)" if len(wrong) > 1 else ""
        raise ModelError(
            f"model {name!r}: the weights in {folder} have {key!r} in shape {found}, its "
            f"config.json asks for {wanted}{more}. They do not belong together: fetch or save "
            "the model again."
        )


def _check_taken(unexpected: Iterable[str], model: PreTrainedModel, name: str) -> None:
    """Refuse weights of the backbone that its architecture has no place for.

    Heads and poolers are left out on purpose, and buffers that are computed anew.
    """
    parts = {part for part, _ in model.named_children()}
    prefix = f"{model.base_model_prefix}."
    left = sorted(
        key
        for key in unexpected
        if key.removeprefix(prefix).partition(".")[0] in parts
        and "pooler" not in key.split(".")
        and not key.endswith(RECOMPUTED)
    )
    if left:
        raise ModelError(
            f"model {name!r}: its weights hold {len(left)} tensors that {type(model).__name__} "
            f"with this config.json has no place for, such as {left[0]!r}. Without them it would "
            "be another model: fetch or save it again, or use a checkpoint that this version of "
            "transformers supports whole."
        )


def _check_kind(model: PreTrainedModel, name: str) -> None:
    """Refuse an architecture that cannot be trained here, with the model's name."""
    try:
        family_of(model)
    except ModelError as fault:
        raise ModelError(f"model {name!r}: {fault}") from fault


def _check_finite(model: PreTrainedModel, name: str, folder: Path) -> None:
    """Refuse weights that are infinite or not a number, as a diverged training leaves them."""
    for key, value in model.state_dict().items():
        # A sum takes no memory of its own; only where it is no number is it looked at closely.
        if (
            value.is_floating_point()
            and not torch.isfinite(value.sum())
            and not torch.isfinite(value).all()
        ):
            bad = int((~torch.isfinite(value)).sum())
            raise ModelError(
                f"model {name!r}: {bad} of {value.numel()} numbers of {key!r} in {folder} are "
                "infinite or not a number. Take a checkpoint from before its training diverged."
            )


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
        A built-in model, a local folder or a hub model; revision of a hub model.
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
