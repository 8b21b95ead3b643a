"""Rows turned into token numbers, once, and batches cut out of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clbench.cache import DamagedFileError, load_tensors, save_tensors, write_if_possible
from clbench.tasks.task import IntArray, Rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK = 4096
"""Rows given to the tokenizer at once."""
WIDTHS = 8
"""Batches are as wide as a multiple of this.

Each new shape makes the matrix library plan its products anew and keep the plan: on MRPC
(MiniLM, bf16, 60 steps) widths of every kind take 400 MB more and a tenth more time than
multiples of eight, with all their padding.
"""


@dataclass(frozen=True)
class EncodedRows:
    """Tokenised rows, end to end.

    Attributes
    ----------
    ids
        Token numbers of all rows, int32, shape (sum of lengths,).
    types
        Segment numbers beside `ids`, uint8, or None where the tokenizer gives none.
    offsets
        Shape (n + 1,): row i is ``ids[offsets[i]:offsets[i + 1]]``.
    labels
        Shape (n,): class numbers (int64) or targets (float32).
    """

    ids: npt.NDArray[np.int32]
    types: npt.NDArray[np.uint8] | None
    offsets: IntArray
    labels: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens of each row, shape (n,)."""
        return np.diff(self.offsets)

    def remap(self, vocabulary: IntArray) -> EncodedRows:
        """The same rows with each id replaced by its position in `vocabulary` (ascending ids)."""
        return replace(self, ids=np.searchsorted(vocabulary, self.ids).astype(np.int32))

    def take(self, positions: npt.ArrayLike) -> EncodedRows:
        """The rows at `positions`, in that order."""
        at = np.asarray(positions, dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(self.lengths[at])]).astype(np.int64)
        flat = _flat_positions(self.offsets[at], self.lengths[at])
        types = None if self.types is None else self.types[flat]
        return EncodedRows(self.ids[flat], types, offsets, self.labels[at])

    def collate(self, positions: npt.ArrayLike, pad_id: int) -> tuple[dict[str, Tensor], Tensor]:
        """One batch, padded on the right to its longest row or a little more; see `WIDTHS`.

        Returns
        -------
        inputs : dict of str to Tensor
            ``input_ids``, ``attention_mask`` and, where there are segments,
            ``token_type_ids``; int64, shape (b, t).
        labels : Tensor
            Shape (b,).
        """
        at = np.asarray(positions, dtype=np.int64)
        lengths = self.lengths[at]
        width = min(-(-int(lengths.max()) // WIDTHS) * WIDTHS, int(self.lengths.max()))
        mask = np.arange(width)[None, :] < lengths[:, None]
        flat = _flat_positions(self.offsets[at], lengths)
        inputs = {"input_ids": _fill(mask, self.ids[flat], pad_id)}
        inputs["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        if self.types is not None:
            inputs["token_type_ids"] = _fill(mask, self.types[flat], 0)
        return inputs, torch.from_numpy(self.labels[at])


def encode(
    rows: Rows, tokenizer: PreTrainedTokenizerBase, max_length: int, *, cache: Path | None = None
) -> EncodedRows:
    """Tokenise `rows`, special tokens included, cut at `max_length` tokens.

    Parameters
    ----------
    rows
        Texts and labels.
    tokenizer
        The model's own; pairs are cut longest first, as the tokenizer does by default.
    max_length
        Tokens of a row at most.
    cache
        Folder to keep the result in, by tokenizer and content; None keeps nothing.
    """
    path = None
    if cache is not None:
        key = hashlib.blake2b(digest_size=16)
        key.update(f"2/{max_length}/{rows.digest}/{tokenizer_digest(tokenizer)}".encode())
        path = cache / f"{key.hexdigest()}.safetensors"
        kept = _read(path, rows.labels)
        if kept is not None:
            return kept
    lengths: list[int] = []
    ids: list[npt.NDArray[np.int32]] = []
    types: list[npt.NDArray[np.uint8]] = []
    for start in range(0, len(rows), CHUNK):
        second = None if rows.second is None else list(rows.second[start : start + CHUNK])
        batch = tokenizer(
            list(rows.first[start : start + CHUNK]),
            second,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
        )
        for row in batch["input_ids"]:
            lengths.append(len(row))
            ids.append(np.asarray(row, dtype=np.int32))
        types += [np.asarray(row, dtype=np.uint8) for row in batch.get("token_type_ids", [])]
    encoded = EncodedRows(
        np.concatenate(ids) if ids else np.empty(0, np.int32),
        np.concatenate(types) if types else None,
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        rows.labels,
    )
    if path is not None:
        _write(path, encoded)
    return encoded


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of all that decides how a text is cut into tokens."""
    known = getattr(tokenizer, "_clbench_digest", None)
    if isinstance(known, str):
        return known
    backend = getattr(tokenizer, "backend_tokenizer", None)
    body = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab())
    outputs = ",".join(tokenizer.model_input_names)
    text = f"{type(tokenizer).__name__}\n{tokenizer.truncation_side}\n{outputs}\n{body}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    tokenizer._clbench_digest = digest
    return digest


def vocabulary_of(
    encoded: Iterable[EncodedRows], special_ids: Iterable[int], size: int
) -> IntArray:
    """The ids that `encoded` can meet and the special ones, ascending.

    Parameters
    ----------
    encoded
        All rows of all splits of a scenario.
    special_ids
        Ids that must stay (padding, mask, …).
    size
        Rows of the embedding table; ids at or above it are an error of the checkpoint.
    """
    seen = np.zeros(size, dtype=bool)
    seen[list(special_ids)] = True
    for part in encoded:
        seen[part.ids] = True
    return np.flatnonzero(seen).astype(np.int64)


def _flat_positions(starts: IntArray, lengths: IntArray) -> IntArray:
    """Positions in the flat arrays of rows that begin at `starts`, row after row."""
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _fill(mask: npt.NDArray[np.bool_], values: npt.NDArray[Any], empty: int) -> Tensor:
    table = np.full(mask.shape, empty, dtype=np.int64)
    table[mask] = values
    return torch.from_numpy(table)


def _write(path: Path, encoded: EncodedRows) -> None:
    arrays = {"ids": encoded.ids, "types": encoded.types, "offsets": encoded.offsets}
    tensors = {name: torch.from_numpy(a) for name, a in arrays.items() if a is not None}
    write_if_possible(path, partial(save_tensors, tensors))


def _read(path: Path, labels: npt.NDArray[Any]) -> EncodedRows | None:
    try:
        stored, _ = load_tensors(path)
    except DamagedFileError:
        return None  # missing or damaged: it is made and written anew
    arrays = {name: tensor.numpy() for name, tensor in stored.items()}
    return EncodedRows(arrays["ids"], arrays.get("types"), arrays["offsets"], labels)
