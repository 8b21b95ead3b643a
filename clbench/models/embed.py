"""Embed texts with the frozen pretrained encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clbench.core.files import Facts, cached_tensors
from clbench.models.classifier import Classifier, Pooling
from clbench.models.encoding import EncodedRows, encode, tokenizer_digest
from clbench.tasks.task import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_TOKENS = 8192
"""Most tokens in a batch, padding included; a longer row is a batch of its own."""


def embed_rows(
    backbone: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    max_length: int,
    device: str | torch.device = "cpu",
    pooling: Pooling = "auto",
    *,
    identity: Mapping[str, Any] | None = None,
) -> npt.NDArray[np.float32]:
    """Return one vector per row, computed in float32 without dropout.

    For multiple choice it is the mean over the choices.

    Parameters
    ----------
    backbone, tokenizer
        A whole pretrained backbone, which is moved to `device`, and its tokenizer.
    rows, max_length
        Texts, and the number of tokens to truncate them to; labels are ignored.
    pooling
        As in `clbench.models.classifier.build_classifier`; ``auto`` is [CLS] for encoders.
    identity
        The model's identity, from `clbench.models.locate.model_identity`. With it the vectors are
        stored in the user's cache, by identity, rows and settings.

    Returns
    -------
    ndarray
        Shape (n, h), float32.
    """

    def compute() -> tuple[dict[str, Tensor], Facts]:
        if not len(rows):
            return {"vectors": torch.empty(0, int(backbone.config.hidden_size))}, {}
        encoded = encode(rows, tokenizer, max_length)
        model = Classifier(backbone, {}, head_seed=lambda name: 0, pooling=pooling)
        model.to(device).eval()

        def features(inputs: dict[str, Tensor]) -> Tensor:
            vectors = model.features(inputs).float()
            return vectors.mean(1) if encoded.choices else vectors

        vectors = map_rows(features, encoded, int(tokenizer.pad_token_id), device)
        return {"vectors": torch.from_numpy(vectors)}, {}

    if identity is None:
        tensors, _ = compute()
    else:
        settings = [tokenizer_digest(tokenizer), rows.digest, max_length, pooling]
        key = {"model": dict(identity), "settings": settings}
        tensors, _ = cached_tensors("embeddings", key, compute)
    array: npt.NDArray[np.float32] = tensors["vectors"].numpy()
    return array


def map_rows(
    function: Callable[[dict[str, Tensor]], Tensor],
    encoded: EncodedRows,
    pad: int,
    device: str | torch.device,
) -> npt.NDArray[np.float32]:
    """Return `function`'s outputs for all rows, shape (n, …), in inference mode.

    It gets padded batches on `device`, and returns shape (b, …).
    """
    # Rows of similar length together: little padding, and the same batches every time.
    order = np.argsort(encoded.lengths, kind="stable")[::-1]
    parts, start = [], 0
    with torch.inference_mode():
        while start < len(order):
            longest = int(encoded.lengths[order[start]])
            at = order[start : start + max(1, BATCH_TOKENS // max(1, longest))]
            inputs, _ = encoded.collate(at, pad)
            inputs = {name: value.to(device) for name, value in inputs.items()}
            parts.append(function(inputs).float().cpu().numpy())
            start += len(at)
    result = np.empty((len(order), *parts[0].shape[1:]), dtype=np.float32)
    result[order] = np.concatenate(parts)
    return result
