"""Rows as prompts and answers in tokens, for language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clbench.errors import DataError, ModelError, join_names
from clbench.messages import count
from clbench.models.encoding import WIDTH_STEP, EncodedRows
from clbench.tasks.task import IntArray, Rows, Task
from clbench.tasks.template import Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""Label of a token that is not predicted, as in transformers."""
BEGINNING = "an answer is the beginning of another one, so answers are ranked with their end."
Tokens = list[int]
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


@dataclass(frozen=True)
class PromptEncoder:
    """Tokenises the rows of tasks as prompts and answers.

    Attributes
    ----------
    tokenizer
        The model's tokenizer, as its authors saved it.
    max_length
        Most tokens of a prompt and its answer. Longer prompts lose the beginning of their longest
        text, never words of the template.
    max_answer
        Most tokens of an answer in rows with targets.
    chat
        Whether to put prompts into the tokenizer's chat template, as the user's words.
    encoder_decoder
        As in `PromptRows`.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    max_answer: int = 64
    chat: bool = False
    encoder_decoder: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no end token. Use another model.")
        if self.chat and not self.tokenizer.chat_template:
            raise ModelError("the tokenizer has no chat template. Set chat = false in [protocol].")

    def encode(self, task: Task, rows: Rows, *, to_train: bool) -> PromptRows:
        """Return prompts of `rows`, with answers to train on, or to choose from when scoring.

        Answers to choose from end with the end token if one of them is the beginning of another.

        Raises
        ------
        DataError
            If an answer has no tokens, two classes have the same answer, or the words of the
            template fill `max_length`.
        """
        template = task.template or Template.default(task.is_pair)
        where = f"task {task.name!r}"
        texts: list[str] = [template.answer(label) for label in task.labels]
        if task.regression:
            texts = list(template.answers.values())
        notes: list[str] = []
        values = _numbers(texts, where) if task.regression else None
        names = [texts]
        tokens: list[list[Tokens]] = [[]]
        if rows.choices:
            names = [list(choices) for choices in zip(*rows.choices, strict=True)]
            tokens = [[self.answer(text, template) for text in row] for row in names]
            if any(_is_beginning(row) for row in tokens):
                notes.append(BEGINNING)
                end = int(self.tokenizer.eos_token_id)
                tokens = [[[*t, end] for t in row] for row in tokens]
        elif not task.free_text:
            tokens = [self._answers(texts, template, where, notes)]
        answers = None
        if to_train:
            answers = self._to_train(task, rows, template, tokens, values, notes)
        longest = max((len(t) for row in tokens for t in row), default=self.max_answer)
        prompts = self._prompts(rows, template, self.max_length - longest, where, notes)
        candidates = None if to_train or task.free_text else _padded(tokens)
        return PromptRows(
            ids=np.concatenate([np.asarray(p, np.int32) for p in prompts]),
            types=None,
            offsets=np.cumsum([0, *map(len, prompts)]).astype(np.int64),
            labels=rows.labels,
            groups=rows.groups,
            answers=answers,
            encoder_decoder=self.encoder_decoder,
            candidates=candidates,
            values=None if to_train else values,
            targets=None if rows.targets is None or to_train else tuple(rows.targets),
            names=None if candidates is None else tuple(map(tuple, names)),
            notes=tuple(f"{where}: {note}" for note in notes),
        )

    def answer(self, text: str, template: Template) -> Tokens:
        """Return the tokens of an answer, as they follow the prompt, without an end token.

        Raises a DataError if there are none.
        """
        tail = self._tail(template)
        blank = "" if not tail or tail[-1].isspace() else " "
        whole, start = self._plain(tail + blank + text), self._plain(tail)
        tokens = whole[len(start) :]
        if whole[: len(start)] != start:  # the tokenizer joins the two
            tokens = self._plain(blank + text)
        if not tokens:
            raise DataError(f"the answer {text!r} has no tokens. Choose another one.")
        return tokens

    def _plain(self, text: str) -> Tokens:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def _tail(self, template: Template) -> str:
        """Return what stands before every answer, as far as it is the same for all rows."""
        if self.encoder_decoder:
            return ""
        last = template.pieces[-1]
        if self.chat:
            return self._dress("").rpartition("\n")[2] or "\n"
        return last if isinstance(last, str) else ":"

    def _dress(self, prompt: str) -> str:
        """Return a prompt as the user's turn of a chat, or as it is."""
        if not self.chat:
            return prompt
        turns = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return str(text)

    def _answers(
        self, texts: Sequence[str], template: Template, where: str, notes: list[str]
    ) -> list[Tokens]:
        """Return the tokens of the answers of all classes."""
        tokens = [self.answer(text, template) for text in texts]
        if len({tuple(t) for t in tokens}) < len(tokens):
            twice = sorted({text for text in texts if texts.count(text) > 1}) or list(texts)
            raise DataError(
                f"{where}: several classes have the answer {join_names(map(repr, twice))}. Give "
                "each class its own in `answers`."
            )
        ordered = sorted(map(tuple, tokens))
        if _is_beginning(tokens):
            notes.append(BEGINNING)
            return [[*t, int(self.tokenizer.eos_token_id)] for t in tokens]
        first = len({t[0] for t in ordered})
        if first < len(ordered):
            notes.append(f"{len(ordered)} answers begin with {first} different tokens.")
        return tokens

    def _to_train(
        self,
        task: Task,
        rows: Rows,
        template: Template,
        tokens: list[list[Tokens]],
        values: tuple[float, ...] | None,
        notes: list[str],
    ) -> TokenArray:
        """Return the answers of all rows, each with an end token."""
        end = int(self.tokenizer.eos_token_id)
        if rows.targets is not None:
            written = [self.answer(text, template) for text in rows.targets]
            if lines := sum("\n" in text.strip() for text in rows.targets):
                notes.append(f"{count(lines, 'target')} of several lines; writing ends with one.")
            if long := sum(len(t) > self.max_answer for t in written):
                notes.append(f"{count(long, 'target')} cut to {self.max_answer} tokens.")
            written = [t[: self.max_answer] for t in written]
        else:
            numbers = rows.labels
            if values is not None:
                numbers = np.abs(rows.labels[:, None] - np.asarray(values)).argmin(axis=1)
            own = len(tokens) > 1 or bool(rows.choices)
            written = [tokens[i if own else 0][int(n)] for i, n in enumerate(numbers)]
        table: TokenArray = _padded([[t if t[-1] == end else [*t, end] for t in written]])[0]
        return table

    def _prompts(
        self, rows: Rows, template: Template, room: int, where: str, notes: list[str]
    ) -> list[Tokens]:
        """Return the tokens of all prompts, at most `room` each."""
        texts = list(zip(*rows.columns, strict=True))
        prompts = self._tokenise([template.render(row) for row in texts])
        special = [i for i, row in enumerate(texts) if self._has_special(row)]
        for i in special:
            prompts[i] = self._as_text(template.render(texts[i]))
        if special:
            notes.append(f"{count(len(special), 'row')} with special tokens, read as plain text.")
        cut = 0
        for i, prompt in enumerate(prompts):
            if len(prompt) > room:
                prompts[i] = self._cut(list(texts[i]), len(prompt), template, room, where)
                cut += 1
        if cut:
            notes.append(f"{count(cut, 'prompt')} cut to {room} tokens from the left of a text.")
        return prompts

    def _cut(
        self, texts: list[str], length: int, template: Template, room: int, where: str
    ) -> Tokens:
        """Return a prompt without the beginning of its longest texts."""
        used = sorted({piece for piece in template.pieces if isinstance(piece, int)})
        while any(texts[i] for i in used):
            longest = max(used, key=lambda i: len(texts[i]))
            text = texts[longest]
            marks = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            starts = [start for start, _ in marks["offset_mapping"]]
            drop = length - room
            texts[longest] = text[starts[drop] :] if drop < len(starts) else ""
            if texts[longest] == text:  # the token begins where the text does
                texts[longest] = text[1:]
            rendered = template.render(texts)
            as_text = self._has_special(texts)
            prompt = self._as_text(rendered) if as_text else self._tokenise([rendered])[0]
            length = len(prompt)
            if length <= room and any(texts[i] for i in used):
                return prompt
        raise DataError(
            f"{where}: the words of its prompt and answers leave no room for a text in max_length "
            f"= {self.max_length} tokens. Raise max_length."
        )

    def _has_special(self, texts: Sequence[str]) -> bool:
        return any(token in text for text in texts for token in self.tokenizer.all_special_tokens)

    def _as_text(self, prompt: str) -> Tokens:
        """Return the tokens of a prompt in which special tokens are ordinary characters."""
        before, found, after = self._dress(prompt).partition(prompt.strip())
        if not self.chat or not found:
            return self._tokenise([prompt], split_special_tokens=True)[0]
        plain = self.tokenizer(found, add_special_tokens=False, split_special_tokens=True)
        return [*self._plain(before), *plain["input_ids"], *self._plain(after)]

    def _tokenise(self, prompts: Sequence[str], **options: Any) -> list[Tokens]:
        dressed = [self._dress(prompt) for prompt in prompts]
        ids = self.tokenizer(dressed, add_special_tokens=not self.chat, **options)["input_ids"]
        end = None if self.encoder_decoder else self.tokenizer.eos_token_id
        # Some tokenizers end every text, but an answer follows here.
        return [list(row[:-1] if len(row) > 1 and row[-1] == end else row) for row in ids]


def _is_beginning(answers: Sequence[Tokens]) -> bool:
    """Whether an answer is the beginning of another one, or equal to it."""
    return any(b[: len(a)] == a for a, b in pairwise(sorted(map(tuple, answers))))


def _numbers(texts: Sequence[str], where: str) -> tuple[float, ...]:
    try:
        values = tuple(float(text) for text in texts)
    except ValueError:
        values = ()
    if len(values) < 2:
        raise DataError(
            f"{where}: for language models, regression needs answers that are numbers, such as "
            'answers = ["0", "1", "2"].'
        )
    return values


def _padded(rows: Sequence[Sequence[Tokens]]) -> TokenArray:
    """Return tokens as an array of shape (rows, k, a), -1 behind them."""
    longest = max(len(tokens) for row in rows for tokens in row)
    table = np.full((len(rows), len(rows[0]), longest), -1, dtype=np.int32)
    for i, row in enumerate(rows):
        for j, tokens in enumerate(row):
            table[i, j, : len(tokens)] = tokens
    return table
