"""Pooled vectors of texts from the frozen pretrained encoder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from clbench.cache import DamagedFileError, load_tensors, save_tensors, write_if_possible
from clbench.models.classifier import Classifier
from clbench.models.encoding import encode, tokenizer_digest
from clbench.models.pooling import Pooling
from clbench.tasks.task import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_TOKENS = 8192
"""Tokens of a batch, padding included, at most (a single longer row is a batch of its own)."""
VERSION = 1
"""Raised when the numbers that this module computes change."""


def embed_rows(
    backbone: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    max_length: int,
    device: str | torch.device = "cpu",
    pooling: Pooling = "auto",
    *,
    identity: Mapping[str, Any] | None = None,
    cache: Path | None = None,
) -> npt.NDArray[np.float32]:
    """One vector a row, computed in float32 without dropout.

    Parameters
    ----------
    backbone
        A whole pretrained backbone; it is moved to `device`.
    tokenizer
        The model's own.
    rows
        Texts; labels are not looked at.
    max_length
        Tokens after which a text is cut.
    device
        Where to compute.
    pooling
        As in `clbench.models.load.build_classifier`; for encoders ``auto`` is [CLS].
    identity
        What the model exactly is, from `clbench.models.locate.model_identity`.
    cache
        Folder to keep the vectors in, by identity, rows and the rest; None, or no
        `identity`, keeps nothing.

    Returns
    -------
    ndarray
        Shape (n, h), float32.
    """
    path = None
    if cache is not None and identity is not None:
        key = json.dumps(
            [
                VERSION,
                dict(identity),
                tokenizer_digest(tokenizer),
                rows.digest,
                max_length,
                pooling,
            ],
            sort_keys=True,
        )
        path = cache / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.safetensors"
        with suppress(DamagedFileError):  # missing or damaged: computed anew
            stored: npt.NDArray[np.float32] = load_tensors(path)[0]["vectors"].numpy()
            return stored
    vectors = _compute(backbone, tokenizer, rows, max_length, torch.device(device), pooling)
    if path is not None:
        write_if_possible(path, partial(save_tensors, {"vectors": torch.from_numpy(vectors)}))
    return vectors


def _compute(
    backbone: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    max_length: int,
    device: torch.device,
    pooling: Pooling,
) -> npt.NDArray[np.float32]:
    encoded = encode(rows, tokenizer, max_length)
    model = Classifier(backbone, {}, head_seed=lambda name: 0, pooling=pooling).to(device).eval()
    vectors = np.empty((len(rows), int(backbone.config.hidden_size)), dtype=np.float32)
    # Rows of like length together: little padding, and the same batches every time.
    order = np.argsort(encoded.lengths, kind="stable")[::-1]
    pad = int(tokenizer.pad_token_id)
    start = 0
    with torch.inference_mode():
        while start < len(order):
            longest = int(encoded.lengths[order[start]])
            at = order[start : start + max(1, BATCH_TOKENS // max(1, longest))]
            inputs, _ = encoded.collate(at, pad)
            moved = {name: value.to(device) for name, value in inputs.items()}
            vectors[at] = model.features(moved).float().cpu().numpy()
            start += len(at)
    return vectors
