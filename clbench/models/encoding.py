"""Tokenise rows once, form batches of them, and trim embedding tables to their tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from clbench.core.files import Facts, cached_tensors, digest
from clbench.tasks.task import IntArray, Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CHUNK = 4096
"""Rows given to the tokenizer at once."""
WIDTH_STEP = 8
"""The width of a batch is rounded up to a multiple of this.

The matrix library plans its products for each new shape and keeps the plans: on MRPC (MiniLM,
bf16, 60 steps) unrounded widths take 400 MB more memory and a tenth more time.
"""


@dataclass(frozen=True)
class EncodedRows:
    """Tokenised rows, stored end to end."""

    ids: np.typing.NDArray[np.int32]
    """Token numbers of all rows, shape (sum of lengths,)."""
    types: np.typing.NDArray[np.uint8] | None
    """Segment number of each token, or None if the tokenizer gives none."""
    offsets: IntArray
    """Shape (n·k + 1,): sequence i is ``ids[offsets[i]:offsets[i + 1]]``."""
    labels: np.typing.NDArray[Any]
    """Shape (n,): class numbers (int64) or targets (float32)."""
    choices: int = 0
    """For multiple choice k, the sequences of a row, one after another; else 0: k is 1."""
    groups: IntArray | None = None
    """Shape (n,), as in `Rows`."""
    notes: tuple[str, ...] = ()
    """Lines for the reader of the results."""
    _by_row: ClassVar[tuple[str, ...]] = ("labels", "groups")

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens of each row, shape (n,)."""
        lengths: IntArray = self._sequence_lengths.reshape(-1, max(1, self.choices)).sum(axis=1)
        return lengths

    @cached_property
    def _sequence_lengths(self) -> IntArray:
        return np.diff(self.offsets)

    def _sequences(self, positions: np.typing.ArrayLike) -> IntArray:
        """Return the numbers of the sequences of the rows at `positions`, shape (m·k,)."""
        k, at = max(1, self.choices), np.asarray(positions, dtype=np.int64)
        return (at[:, None] * k + np.arange(k)).ravel()

    def lock(self) -> Self:
        """Return a copy with read-only arrays, since all cells of a process share them."""

        def lock(array: np.typing.NDArray[Any]) -> np.typing.NDArray[Any]:
            # bytes stay read-only
            return np.frombuffer(array.tobytes(), dtype=array.dtype).reshape(array.shape)

        values = {each.name: getattr(self, each.name) for each in fields(self)}
        locked: dict[str, Any] = {
            n: lock(v) for n, v in values.items() if isinstance(v, np.ndarray)
        }
        return replace(self, **locked)

    def remap(self, vocabulary: IntArray) -> Self:
        """Return the rows with each id replaced by its position in `vocabulary` (ascending)."""
        return replace(self, ids=np.searchsorted(vocabulary, self.ids).astype(np.int32))

    def take(self, positions: np.typing.ArrayLike) -> Self:
        """Return the rows at `positions`, in that order."""
        at, rows = self._sequences(positions), np.asarray(positions, dtype=np.int64)
        lengths = self._sequence_lengths[at]
        flat = _flat_positions(self.offsets[at], lengths)
        own: dict[str, Any] = {}
        for name in self._by_row:
            value = getattr(self, name)
            if value is not None and len(value) == len(self):  # else all rows share it
                own[name] = (
                    tuple(value[i] for i in rows) if isinstance(value, tuple) else value[rows]
                )
        return replace(
            self,
            ids=self.ids[flat],
            types=None if self.types is None else self.types[flat],
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            **own,
        )

    def collate(
        self, positions: np.typing.ArrayLike, pad_id: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return one batch, padded on the right to its longest sequence and up to `WIDTH_STEP`.

        Returns
        -------
        inputs : dict of str to Tensor
            ``input_ids``, ``attention_mask`` and, if there are segments, ``token_type_ids``;
            int64, shape (b, t), or (b, k, t) for multiple choice.
        labels : Tensor
            Shape (b,).
        """
        rows, at = np.asarray(positions, dtype=np.int64), self._sequences(positions)
        lengths = self._sequence_lengths[at]
        width = -(-int(lengths.max()) // WIDTH_STEP) * WIDTH_STEP
        width = min(width, int(self._sequence_lengths.max()))  # the model may take no more
        mask = np.arange(width)[None, :] < lengths[:, None]
        flat = _flat_positions(self.offsets[at], lengths)

        def fill(values: np.typing.NDArray[Any], empty: int) -> Tensor:
            table = np.full(mask.shape, empty, dtype=np.int64)
            table[mask] = values[flat]
            return shaped(table)

        def shaped(table: np.typing.NDArray[np.int64]) -> Tensor:
            shape = (len(rows), self.choices, width) if self.choices else table.shape
            return torch.from_numpy(table.reshape(shape))

        inputs = {"input_ids": fill(self.ids, pad_id)}
        inputs["attention_mask"] = shaped(mask.astype(np.int64))
        if self.types is not None:
            inputs["token_type_ids"] = fill(self.types, 0)
        return inputs, torch.from_numpy(self.labels[rows])


def _flat_positions(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the positions in the flat arrays of sequences that begin at `starts`, in order."""
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def encode(
    rows: Rows, tokenizer: PreTrainedTokenizerBase, max_length: int, *, cache: bool = False
) -> EncodedRows:
    """Tokenise `rows`, special tokens included, and truncate them to `max_length` tokens.

    The longer text of a pair is truncated first. A row of a multiple-choice task has a sequence for
    each choice. With `cache` the result is stored in the user's
    cache, by tokenizer and content.
    """

    def tokenise() -> tuple[dict[str, Tensor], Facts]:
        arrays: dict[str, list[np.typing.NDArray[Any]]] = {"ids": [], "types": []}
        for start in range(0, len(rows), CHUNK):
            first, *others = (list(column[start : start + CHUNK]) for column in rows.texts)
            if rows.choices:
                first = [text for text in first for _ in others]
                others = [[text for texts in zip(*others, strict=True) for text in texts]]
            batch = tokenizer(
                first,
                *others,
                truncation=True,
                max_length=max_length,
                return_attention_mask=False,
            )
            arrays["ids"] += [np.asarray(row, np.int32) for row in batch["input_ids"]]
            arrays["types"] += [
                np.asarray(row, np.uint8) for row in batch.get("token_type_ids", [])
            ]
        lengths = [0, *(len(row) for row in arrays["ids"])]
        tensors = {name: torch.from_numpy(np.concatenate(a)) for name, a in arrays.items() if a}
        return {
            "ids": torch.empty(0, dtype=torch.int32),
            **tensors,
            "offsets": torch.from_numpy(np.cumsum(lengths, dtype=np.int64)),
        }, {}

    if cache:
        key = {"length": max_length, "rows": rows.digest, "tokenizer": tokenizer_digest(tokenizer)}
        tensors, _ = cached_tensors("tokens", key, tokenise)
    else:
        tensors, _ = tokenise()
    stored = {name: value.numpy() for name, value in tensors.items()}
    return EncodedRows(
        stored["ids"],
        stored.get("types"),
        stored["offsets"],
        rows.labels,
        len(rows.choices),
        rows.groups,
    )


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of everything that decides how a text is cut into tokens."""
    if not hasattr(tokenizer, "_clbench_digest"):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        body = backend.to_str() if backend is not None else _slow_settings(tokenizer)
        outputs = ",".join(tokenizer.model_input_names)
        text = f"{type(tokenizer).__name__}\n{tokenizer.truncation_side}\n{outputs}\n{body}"
        tokenizer._clbench_digest = digest(text)
    return str(tokenizer._clbench_digest)


def _slow_settings(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what decides the tokens of a tokenizer without a `tokenizers` backend; no paths."""
    settings = {key: v for key, v in tokenizer.init_kwargs.items() if key != "name_or_path"}
    for key in tokenizer.vocab_files_names:
        path = settings.get(key) or getattr(tokenizer, key, None)
        if isinstance(path, str) and Path(path).is_file():
            settings[key] = digest(Path(path))
    return json.dumps([tokenizer.get_vocab(), settings], sort_keys=True, default=str)


def vocabulary_of(
    encoded: Iterable[EncodedRows], special_ids: Iterable[int], size: int
) -> IntArray:
    """Return the ids that occur in `encoded`, and `special_ids`, ascending.

    `encoded` holds all rows of all splits of a scenario; `size` is the number of rows of the
    embedding table.
    """
    present = np.zeros(size, dtype=bool)
    present[list(special_ids)] = True
    for rows in encoded:
        present[rows.ids] = True
    return np.flatnonzero(present).astype(np.int64)


def trim_embeddings(backbone: PreTrainedModel, vocabulary: IntArray) -> Tensor:
    """Trim the input embedding table of `backbone`, in place, to the rows of `vocabulary`.

    Afterwards the model's ``input_ids`` are positions in `vocabulary`. The padding row stays
    the padding row; the configuration keeps describing the whole table. This is exact: without
    weight decay, a row whose token never occurs gets no gradient and no update. It saves
    filling and updating a dense gradient of the whole table at each step.

    The backbone must have no masked-language or other head that reads the table. `vocabulary`
    holds original token numbers, ascending (see `vocabulary_of`); it is returned as a tensor.
    """
    ids = torch.from_numpy(np.array(vocabulary, dtype=np.int64))
    whole = backbone.get_input_embeddings().weight
    weight = nn.Parameter(whole.detach()[ids].clone(), requires_grad=whole.requires_grad)
    # The modules that share the table stay: some are subclasses that scale what they look up.
    for module in backbone.modules():
        if isinstance(module, nn.Embedding) and module.weight is whole:
            padding = np.flatnonzero(ids.numpy() == module.padding_idx)
            module.weight = weight
            module.num_embeddings = len(ids)
            module.padding_idx = int(padding[0]) if len(padding) else None
    return ids


IGNORED = -100
"""Label of a token that is not predicted, as in transformers."""
TokenArray = np.typing.NDArray[np.int32]


@dataclass(frozen=True)
class PromptRows(EncodedRows):
    """Tokenised prompts, and the answers to train on, to choose from, or to compare with.

    Attributes
    ----------
    answers
        Shape (n, m): tokens of each row's answer to train on, -1 behind it; or None.
    encoder_decoder
        Whether the prompt goes to an encoder and the answer to a decoder.
    candidates
        Shape (c, k, a): tokens of the answers to choose from, -1 behind them; c is 1 if all rows
        have the same ones, else n. None for rows to train on, or to write a text for.
    values
        The numbers that the candidates stand for, in regression; or None.
    targets
        Texts to compare what is written with; or None.
    names
        Texts of the candidates, shape (c, k); or None.
    """

    answers: TokenArray | None = None
    encoder_decoder: bool = False
    candidates: TokenArray | None = None
    values: tuple[float, ...] | None = None
    targets: tuple[str, ...] | None = None
    names: tuple[tuple[str, ...], ...] | None = None
    _by_row: ClassVar[tuple[str, ...]] = (
        *EncodedRows._by_row,
        "answers",
        "candidates",
        "targets",
        "names",
    )

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens that the model reads of each row, shape (n,): an answer's last is only written."""
        lengths: IntArray = self._sequence_lengths + np.maximum(self._answer_lengths - 1, 0)
        return lengths

    @cached_property
    def _answer_lengths(self) -> IntArray:
        if self.answers is None:
            return np.zeros(len(self), dtype=np.int64)
        lengths: IntArray = (self.answers >= 0).sum(axis=1)
        return lengths

    def collate(
        self, positions: np.typing.ArrayLike, pad_id: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return one batch, padded on the right.

        Returns
        -------
        inputs : dict of str to Tensor
            ``input_ids`` and ``attention_mask``, shape (b, t). To train on, also ``predict``, shape
            (b, m): the positions whose next token belongs to the answer; for encoder-decoders
            ``decoder_input_ids`` instead, -1 for the start. To score, ``candidates``, shape
            (b, k, a), and for regression ``values``, shape (b, k).
        labels : Tensor
            To train on, the answers' tokens, shape (b, m), with -100 behind them; to score, shape
            (b,), as in `Rows`.
        """
        rows = np.asarray(positions, dtype=np.int64)
        inputs, labels = super().collate(rows, pad_id)
        if self.candidates is not None:
            own = self.candidates[rows if len(self.candidates) > 1 else np.zeros_like(rows)]
            inputs["candidates"] = torch.from_numpy(own.astype(np.int64))
        if self.values is not None:
            inputs["values"] = torch.tensor(self.values).expand(len(rows), -1)
        if self.answers is None:
            return inputs, labels
        lengths = self._answer_lengths[rows]
        answers = self.answers[rows, : int(lengths.max())]
        real = answers >= 0
        tokens = torch.from_numpy(np.where(real, answers, IGNORED).astype(np.int64))
        if self.encoder_decoder:
            before = np.where(real, answers, pad_id)[:, :-1]
            start = np.full((len(rows), 1), -1)
            inputs["decoder_input_ids"] = torch.from_numpy(np.hstack([start, before]))
            return inputs, tokens
        return self._with_answers(inputs, self._sequence_lengths[rows], answers, pad_id), tokens

    def _with_answers(
        self, inputs: dict[str, Tensor], prompts: IntArray, answers: TokenArray, pad_id: int
    ) -> dict[str, Tensor]:
        """Return inputs with each row's answer, but for its last token, behind its prompt."""
        real = answers >= 0
        total = prompts + real.sum(axis=1) - 1
        width = min(-(-int(total.max()) // WIDTH_STEP) * WIDTH_STEP, int(self.lengths.max()))
        table = np.full((len(answers), width), pad_id, dtype=np.int64)
        ids = inputs["input_ids"].numpy()[:, :width]
        table[:, : ids.shape[1]] = ids
        at = prompts[:, None] + np.arange(answers.shape[1])
        row, column = np.nonzero(real[:, 1:])
        table[row, at[row, column]] = answers[row, column]
        mask = np.arange(width) < total[:, None]
        return {
            "input_ids": torch.from_numpy(table),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            "predict": torch.from_numpy(np.where(real, at - 1, 0)),
        }
