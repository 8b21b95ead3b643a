"""Rows as prompts and answers in tokens, for language models."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from clbench.core.errors import DataError, ModelError, count, join_names
from clbench.core.limits import LimitError, bounded
from clbench.models.encoding import PromptRows, TokenArray
from clbench.models.folder import CHAT_TEMPLATES
from clbench.models.likelihood import continuation, prompt_tokens
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template

MESSAGE = "A message."
"""Shows where a chat template puts the user's words."""
ANSWER = "An answer."
"""Shows what a chat template puts before the model's words."""
SECONDS, ROWS_PER_SECOND = 10.0, 100
"""Time for a chat template to dress a message, and rows to dress in every second beyond that."""
TODAY = datetime(2024, 7, 26)
"""Told to chat templates (the default of that of Llama 3.2), or prompts would change daily."""
MOST_ADDED = 100_000
"""Most characters that a chat template may add."""
BEGINNING = "one answer is a prefix of another, so the end token is scored too."
Tokens = list[int]


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
    remedy
        What to do if the chat template fails.
    list_answers
        Whether prompts of tasks with classes begin with a line of all answers.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    max_answer: int = 64
    chat: bool = False
    encoder_decoder: bool = False
    remedy: str = "Set chat = false in [protocol]."
    list_answers: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no end token. Use another model.")
        if not self.chat:
            return
        if not self.tokenizer.chat_template:
            raise ModelError("the tokenizer has no chat template. Set chat = false in [protocol].")
        if (found := self._rendered([MESSAGE])[0].count(MESSAGE)) != 1:
            raise ModelError(
                f"{self._template} contains the user's message {found} times instead of once. "
                f"{self.remedy}"
            )

    def encode(self, task: Task, rows: Rows, *, to_train: bool) -> PromptRows:
        """Return prompts of `rows`, with answers to train on, or to choose from when scoring.

        Answers to choose from end with the end token if one of them is the beginning of another.

        Raises
        ------
        DataError
            If an answer has no tokens, two classes have the same answer, or the words of the
            template fill `max_length`.
        """
        template = task.effective_template
        where = f"task {task.name!r}"
        texts: list[str] = [template.answer(label) for label in task.labels]
        if task.regression:
            texts = list(template.answers.values())
        notes: list[str] = []
        values = _numbers(texts, where) if task.regression else None
        names = [texts]
        tokens: list[list[Tokens]] = [[]]
        if rows.choices:
            names = [[c.strip() for c in choices] for choices in zip(*rows.choices, strict=True)]
            tokens = [[self.answer(text, template) for text in row] for row in names]
            same = sum(len({*row}) < len(row) for row in names)
            _note(notes, same, "row", "with equal choices, of which the first is taken.")
            if any(_is_beginning(row) for row in tokens):
                notes.append(BEGINNING)
                end = int(self.tokenizer.eos_token_id)
                tokens = [[[*t, end] for t in row] for row in tokens]
        elif not task.free_text:
            tokens = [self._answers(texts, template, where, notes)]
            if self.list_answers and not task.regression:
                template = template.after(f"Options: {', '.join(texts)}\n")
                unclear = sum("," in text or "\n" in text for text in texts)
                _note(notes, unclear, "answer", "with a comma or line break in their list.")
        answers = None
        if to_train:
            answers = self._to_train(task, rows, template, tokens, values, notes)
        longest = max((len(t) for row in tokens for t in row), default=self.max_answer)
        kind = "training" if to_train else "scored"
        prompts = self._prompts(rows, template, self.max_length - longest, where, kind, notes)
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
        blank = self._gap[1] if self.chat and tail else None
        if blank is None:
            # Most chats go on right behind a token that begins the model's turn.
            marks = self._added if self.chat else ()
            blank = "" if not tail or tail[-1].isspace() or tail.endswith(marks) else " "
        plain = partial(self._plain, as_text=self._has_special([text]))
        tokens = continuation(plain, tail, blank + text)
        if not tokens:
            raise DataError(f"the answer {text!r} has no tokens. Choose another one.")
        return tokens

    def _plain(self, text: str, as_text: bool = False) -> Tokens:
        """Return the tokens of a text; with `as_text`, special tokens are ordinary characters."""
        if not text:
            return []
        encoding = self.tokenizer(text, add_special_tokens=False, split_special_tokens=as_text)
        return list(encoding["input_ids"])

    def _tail(self, template: Template) -> str:
        """Return what stands before every answer, as far as it is the same for all rows."""
        if self.encoder_decoder:
            return ""
        last = template.pieces[-1]
        if self.chat:
            return self._frame[1].rpartition("\n")[2] or "\n"
        return last if isinstance(last, str) else ":"

    @property
    def _template(self) -> str:
        """Where the chat template is."""
        folder = Path(self.tokenizer.name_or_path)
        files = [folder / name for name in CHAT_TEMPLATES]
        return "the chat template" + next((f" in {f}" for f in files if f.is_file()), "")

    def dress(self, prompts: Sequence[str]) -> list[str]:
        """Return prompts as the user's turns of chats, up to where an answer begins."""
        return [text + self._gap[0] for text in self._rendered(prompts)]

    def _rendered(self, prompts: Sequence[str], answer: str | None = None) -> list[str]:
        """Return chats of prompts, with an answer if one is given, from the template.

        It runs in another process.
        """

        def render() -> list[str]:
            turns = [] if answer is None else [{"role": "assistant", "content": answer}]
            chats = [[{"role": "user", "content": prompt}, *turns] for prompt in prompts]
            options: Any = {"tokenize": False, "add_generation_prompt": answer is None}
            vars(chat_template_utils)["datetime"] = SimpleNamespace(now=lambda: TODAY)
            random.seed(0)  # templates may draw, too
            return [str(self.tokenizer.apply_chat_template(chat, **options)) for chat in chats]

        try:
            texts: list[str] = bounded(render, SECONDS + len(prompts) / ROWS_PER_SECOND)
            if max(map(len, texts)) > MOST_ADDED + max(map(len, prompts)):
                raise LimitError(f"it adds more than {MOST_ADDED:,} characters")
        except LimitError as error:
            raise ModelError(f"{self._template} fails: {error}. {self.remedy}") from error
        return texts

    @cached_property
    def _frame(self) -> tuple[str, str, bool]:
        """What the chat template puts before and after a message, and if it keeps its blanks."""
        text, spaced = self.dress([MESSAGE, f" {MESSAGE} "])
        before, _, after = text.partition(MESSAGE)
        return before, after, f" {MESSAGE} " in spaced

    @cached_property
    def _gap(self) -> tuple[str, str | None]:
        """What ends the prompts of chats: a line break or nothing; and the blank before answers.

        The blank is None if the chat template does not tell it.
        """
        with suppress(ModelError):  # it may refuse answers
            (prompt,), (chat,) = self._rendered([MESSAGE]), self._rendered([MESSAGE], ANSWER)
            gap, answer, _ = chat.removeprefix(prompt).partition(ANSWER)
            if answer and chat.startswith(prompt) and not gap.strip():
                # Written answers end at a line break, so none begins with one.
                return (gap, "") if "\n" in gap else ("", gap)
        return "", None

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
        if _is_beginning(tokens):
            notes.append(BEGINNING)
            return [[*t, int(self.tokenizer.eos_token_id)] for t in tokens]
        if (first := len({t[0] for t in tokens})) < len(tokens):
            notes.append(f"{len(tokens)} answers begin with {first} different tokens.")
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
            lines = sum("\n" in text.strip() for text in rows.targets)
            stops = "with several lines; generation stops at the first line break."
            _note(notes, lines, "target", stops)
            long = sum(len(t) > self.max_answer for t in written)
            _note(notes, long, "target", f"cut to {self.max_answer} tokens.")
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
        self,
        rows: Rows,
        template: Template,
        room: int,
        where: str,
        kind: str,
        notes: list[str],
    ) -> list[Tokens]:
        """Return the tokens of all prompts, at most `room` each."""
        texts = list(zip(*rows.texts, strict=True))
        rendered = [template.render(row) for row in texts]
        prompts = self._tokenise(self.dress(rendered) if self.chat else rendered)
        special = [i for i, row in enumerate(texts) if self._has_special(row)]
        for i in special:
            prompts[i] = self._as_text(rendered[i])
        _note(notes, len(special), f"{kind} row", "with special tokens, read as plain text.")
        long = [i for i, prompt in enumerate(prompts) if len(prompt) > room]
        for i in long:
            prompts[i] = self._cut(list(texts[i]), len(prompts[i]), template, room, where)
        dropped = f"cut to {room} tokens by dropping the beginning of the longest text."
        _note(notes, len(long), f"{kind} prompt", dropped)
        return prompts

    def _cut(
        self, texts: list[str], length: int, template: Template, room: int, where: str
    ) -> Tokens:
        """Return a prompt without the beginning of its longest texts."""
        used = sorted({piece for piece in template.pieces if isinstance(piece, int)})
        while any(texts[i] for i in used):
            longest = max(used, key=lambda i: len(texts[i]))
            text, as_text = texts[longest], self._has_special(texts)
            marks = self.tokenizer(
                text,
                add_special_tokens=False,
                return_offsets_mapping=True,
                split_special_tokens=as_text,
            )
            starts = [start for start, _ in marks["offset_mapping"]]
            drop = -((room - length) // template.pieces.count(longest))
            texts[longest] = text[starts[drop] :] if drop < len(starts) else ""
            if texts[longest] == text:  # the token begins where the text does
                texts[longest] = text[1:]
            rendered = template.render(texts)
            if not as_text and self.chat:  # as the template does
                before, after, keeps = self._frame
                rendered = f"{before}{rendered if keeps else rendered.strip()}{after}"
            prompt = self._as_text(rendered) if as_text else self._tokenise([rendered])[0]
            length = len(prompt)
            if length <= room and any(texts[i] for i in used):
                return prompt
        unlisted = ", set list_answers = false" if self.list_answers else ""
        raise DataError(
            f"{where}: the words of its prompt and answers leave no room for a text in max_length "
            f"= {self.max_length} tokens. Raise max_length{unlisted}, or lower answer_length for "
            "targets."
        )

    def _has_special(self, texts: Sequence[str]) -> bool:
        return any(token in text for text in texts for token in self._special)

    @cached_property
    def _special(self) -> set[str]:
        """The texts of special tokens; those without a role are in the decoder alone."""
        added = self.tokenizer.added_tokens_decoder.values()
        return {*self.tokenizer.all_special_tokens, *(str(t) for t in added if t.special)}

    @cached_property
    def _added(self) -> tuple[str, ...]:
        return tuple(map(str, self.tokenizer.added_tokens_decoder.values()))

    def _as_text(self, prompt: str) -> Tokens:
        """Return the tokens of a prompt in which special tokens are ordinary characters."""
        if not self.chat:
            return self._tokenise([prompt], split_special_tokens=True)[0]
        before, after, _ = self._frame
        return [*self._plain(before), *self._plain(prompt, as_text=True), *self._plain(after)]

    def _tokenise(self, prompts: Sequence[str], **options: Any) -> list[Tokens]:
        options = {"add_special_tokens": not self.chat, **options}
        return prompt_tokens(
            self.tokenizer, prompts, encoder_decoder=self.encoder_decoder, **options
        )


def _note(notes: list[str], number: int, noun: str, text: str) -> None:
    """Add a note on a number of things, unless it is 0."""
    if number:
        notes.append(f"{count(number, noun)} {text}")


def _is_beginning(answers: Sequence[Tokens]) -> bool:
    """Whether an answer is the beginning of another one."""
    return any(b[: len(a)] == a for a, b in pairwise(sorted({*map(tuple, answers)})))


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
