"""What a language model answers to the questions of a general task."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase, StopStringCriteria

from clbench.core.errors import ModelError
from clbench.models.answering import write
from clbench.models.families import usable_length
from clbench.models.likelihood import likelihood, prompt_tokens
from clbench.models.prompts import PromptEncoder
from clbench.tasks.general import GeneralTask, Question

Floats = np.typing.NDArray[np.float64]
BATCH, TOKENS = 64, 1 << 15
"""Most answers that are written at a time, and most tokens of them with their prompts."""
SPARE = 4
"""Tokens by which a cut prompt may grow as its rest is tokenised again."""
Reader = tuple[Any, PreTrainedTokenizerBase]
"""A language model and its tokenizer."""


class Answered(NamedTuple):
    """Answers to questions.

    Attributes
    ----------
    said
        What was chosen or written.
    marks
        Whether an answer is right, has the form that was asked for, and follows instructions
        checked loosely; NaN where that does not apply.
    scores
        Log-probabilities of the choices; empty where answers are written.
    """

    said: list[str]
    marks: list[tuple[float, float, float]]
    scores: list[Floats]


def ask(
    reader: Reader, task: GeneralTask, questions: Sequence[Question], wording: int = 0
) -> Answered:
    """Return the choices that a model finds most probable, or what it writes.

    Choices are ranked by the sum of their tokens' log-probabilities behind the prompt in a wording,
    which is divided by their characters in tasks `by_length`.
    """
    prompts = [each.prompts[wording] for each in questions]
    if not task.choices:
        texts = _write(reader, [each for (each,) in prompts], task)
        marks = [task.grade(*pair) for pair in zip(questions, texts, strict=True)]
        return Answered(texts, marks, [])
    scores = _rank(reader, prompts, questions)
    sizes = [[len(c) if task.by_length else 1 for c in q.choices] for q in questions]
    best = [int((s / size).argmax()) for s, size in zip(scores, sizes, strict=True)]
    pairs = [*zip(questions, best, strict=True)]
    marks = [(float(b == q.right), np.nan, np.nan) for q, b in pairs]
    return Answered([q.choices[b] for q, b in pairs], marks, scores)


def _rank(
    reader: Reader, prompts: Sequence[Sequence[str]], questions: Sequence[Question]
) -> list[Floats]:
    """Return the log-probabilities of each question's choices, which may have a prompt each."""
    flat = [(i, prompt) for i, each in enumerate(prompts) for prompt in each]
    found: dict[int, list[Floats]] = {i: [] for i in range(len(questions))}
    for count in {len(each.answers) for each in questions}:
        rows = [(i, prompt) for i, prompt in flat if len(questions[i].answers) == count]
        answers = [questions[i].answers for i, _ in rows]
        tokens = reader[1]([text for row in answers for text in row])["input_ids"]
        texts = _fitted(reader, [prompt for _, prompt in rows], max(map(len, tokens)))
        for (i, _), each in zip(rows, likelihood(*reader, texts, answers), strict=True):
            found[i].append(each.astype(np.float64))
    return [np.concatenate(each) for each in found.values()]


def _write(reader: Reader, prompts: Sequence[str], task: GeneralTask) -> list[str]:
    """Return what the model writes behind each prompt, greedily, up to a stop."""
    network, tokenizer = reader
    chat, prompts = _dressed(tokenizer, task, prompts)
    most = min(task.length, (usable_length(network.config.get_text_config()) or 1 << 20) // 2)
    prompts = _fitted(reader, prompts, most)
    ends = network.config.eos_token_id
    stops = {*([ends] if isinstance(ends, int) else ends or ()), tokenizer.eos_token_id} - {None}
    until = _until(tokenizer, task)
    pad, texts = int(tokenizer.pad_token_id), dict[int, str]()
    encodes = getattr(network.config, "is_encoder_decoder", False)
    tokens = prompt_tokens(tokenizer, prompts, encoder_decoder=encodes, add_special_tokens=not chat)
    sizes = [len(ids) + most for ids in tokens]
    order = sorted(range(len(prompts)), key=lambda i: -sizes[i])
    while order:
        size = min(BATCH, max(1, TOKENS // sizes[order[0]]))
        rows, order = order[:size], order[size:]
        inputs = tokenizer.pad({"input_ids": [tokens[i] for i in rows]}, return_tensors="pt")
        inputs = inputs.to(network.device)
        written = write(network, inputs, sorted(stops), most, pad_id=pad, until=until)
        words = tokenizer.batch_decode(written, skip_special_tokens=True)
        texts |= dict(zip(rows, words, strict=True))
    at_stop = re.compile("|".join(map(re.escape, task.stops)) or "$^")
    return [at_stop.split(texts[i], maxsplit=1)[0] for i in range(len(prompts))]


def check_written(tokenizer: PreTrainedTokenizerBase, task: GeneralTask, one: Question) -> None:
    """Raise a ModelError if a task's answers are written, and the tokenizer does not allow it."""
    if not task.choices:
        _dressed(tokenizer, task, one.prompts[0])
        _until(tokenizer, task)


def _dressed(
    tokenizer: PreTrainedTokenizerBase, task: GeneralTask, prompts: Sequence[str]
) -> tuple[bool, Sequence[str]]:
    """Return whether the chat template is used, and the prompts in it."""
    if not (task.chat and tokenizer.chat_template):
        return False, prompts
    remedy = "Correct it, or remove it: without one, prompts are plain text."
    return True, PromptEncoder(tokenizer, 0, chat=True, remedy=remedy).dress(prompts)


def _until(tokenizer: PreTrainedTokenizerBase, task: GeneralTask) -> StopStringCriteria | None:
    """Return the criterion of the texts that end an answer."""
    try:
        return StopStringCriteria(tokenizer, list(task.stops)) if task.stops else None
    except ValueError as error:  # of transformers, whose probe needs letters
        raise ModelError(
            f"task {task.name!r} cannot be asked: the tokenizer does not spell texts letter by "
            "letter, as those that end an answer require. Leave the task out."
        ) from error


def _fitted(reader: Reader, prompts: Sequence[str], length: int) -> Sequence[str]:
    """Return prompts without their beginning if an answer of a length in tokens does not fit."""
    network, tokenizer = reader
    if (most := usable_length(network.config.get_text_config())) is None:
        return prompts
    options: Any = {"return_offsets_mapping": True, "verbose": False}
    tokens, room = tokenizer(list(prompts), **options)["offset_mapping"], most + 1 - length
    return [
        prompt if len(own) <= room else prompt[own[min(SPARE - room, -1)][0] :]
        for prompt, own in zip(prompts, tokens, strict=True)
    ]
