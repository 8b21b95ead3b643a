"""Tokenised prompts and answers of a language model, and the batches made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clbench.models.encoding import WIDTH_STEP, EncodedRows
from clbench.tasks.task import IntArray

IGNORED = -100
"""Label of a token that is not predicted, as in transformers."""
TokenArray = npt.NDArray[np.int32]


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

    def take(self, positions: npt.ArrayLike) -> PromptRows:
        """Return the rows at `positions`, in that order."""
        rows = np.asarray(positions, dtype=np.int64)
        own: dict[str, Any] = {}
        for name in ("answers", "candidates", "targets", "names"):
            value = getattr(self, name)
            if value is None or (name in ("candidates", "names") and len(value) == 1):
                continue
            own[name] = tuple(value[i] for i in rows) if isinstance(value, tuple) else value[rows]
        taken = super().take(rows)
        assert isinstance(taken, PromptRows)
        return replace(taken, **own)

    def collate(self, positions: npt.ArrayLike, pad_id: int) -> tuple[dict[str, Tensor], Tensor]:
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
