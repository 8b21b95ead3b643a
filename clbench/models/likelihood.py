"""Log-probabilities of answers to prompts under a language model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from clbench.core.errors import DataError, format_value
from clbench.models.answer_scores import AnswerScorer
from clbench.models.beginnings import Behind, alike, reads_ahead
from clbench.models.classifier import evaluating
from clbench.models.families import usable_length

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

PROMPT_TOKENS = 1 << 13
"""Most tokens of prompts at a time."""
LONE = re.compile("[\ud800-\udfff]")
"""Half of a pair of surrogates, which is no character."""


def continuation(tokens: Callable[[str], list[int]], before: str, text: str) -> list[int]:
    """Return the tokens of `text` as it follows `before`.

    If the tokenizer joins them, these are its tokens behind a line break, else those it has alone.
    """
    for anchor in (before, "\n"):
        start, whole = tokens(anchor), tokens(anchor + text)
        if (start or anchor == before) and whole[: len(start)] == start and whole[len(start) :]:
            return whole[len(start) :]
    return tokens(text)


def prompt_tokens(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    encoder_decoder: bool = False,
    **options: Any,
) -> list[list[int]]:
    """Return the tokens of prompts that an answer follows; `options` are the tokenizer's.

    They have no end token, with which some tokenizers end every text, unless an encoder reads them.
    An empty prompt stands for the token that begins texts. Raises a DataError if there is none.
    """
    ids = tokenizer(["a", *prompts], **options)["input_ids"]
    (probe, *rows), end = map(list, ids), tokenizer.eos_token_id
    alone = tokenizer("a", add_special_tokens=False)["input_ids"]
    if not encoder_decoder and probe[-1:] == [end] != alone[-1:]:
        rows = [row[:-1] or row for row in rows]
    start = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if start is None and not all(rows):
        raise DataError("the tokenizer has no token for an empty prompt. Give it some text.")
    return [row or [int(start)] for row in rows]


def _listed(what: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise DataError(f"likelihood: {what} are lists of texts, not {format_value(values)}.")
    return list(values)


@torch.inference_mode()
def likelihood(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    answers: Sequence[str] | Sequence[Sequence[str]],
    *,
    batch_size: int = 32,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the log-probabilities of answers to prompts, in nats, shape (prompts, answers).

    Parameters
    ----------
    model
        A causal or encoder-decoder language model of transformers. It is put into evaluation mode
        meanwhile.
    tokenizer
        Its tokenizer.
    prompts
        Texts to continue. An empty one stands for the token that begins texts.
    answers
        Continuations, the same for all prompts, or a list for each, all of one length. They follow
        the prompt as they are: for most models they begin with a blank.
    batch_size
        Most prompts in a batch; long ones come in smaller batches.

    Raises
    ------
    DataError
        If there are no prompts or answers, one is not a text, an answer has no tokens or does not
        fit behind its prompt, or the tokenizer is another model's.
    """
    config = getattr(model, "config", None)
    batches = [*answer_batches(config, tokenizer, prompts, answers, batch_size=batch_size)]
    pad = int(tokenizer.pad_token_id or tokenizer.eos_token_id or 0)
    device = model.device
    size, order, scores = len(model.get_input_embeddings().weight), list[int](), list[Tensor]()
    ahead = any(shared for _, shared, _ in batches) and reads_ahead(model)
    plain = scorer = AnswerScorer(model, pad_id=pad)
    before: list[int] = []
    for rows, shared, inputs in batches:
        if (largest := max(int(inputs[n].max()) for n in ("input_ids", "candidates"))) >= size:
            raise DataError(
                f"likelihood: token {largest} of the tokenizer is beyond the model's {size} "
                "tokens. Use the tokenizer that belongs to the model."
            )
        order += rows
        inputs = {name: value.to(device) for name, value in inputs.items()}
        with evaluating(model):
            if not (shared and ahead):
                scorer, before = plain, []
            else:
                beginning = inputs["input_ids"][:1, :shared]
                if before != (before := beginning[0].tolist()):
                    scorer = AnswerScorer(cast(Any, Behind(model, beginning)), pad_id=pad)
                for name in ("input_ids", "attention_mask"):
                    inputs[name] = inputs[name][:, shared:]
            scores.append(scorer(inputs).cpu())
    return torch.cat(scores)[torch.tensor(order).argsort()].float().numpy()


def answer_batches(
    config: PreTrainedConfig | Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    answers: Sequence[str] | Sequence[Sequence[str]],
    *,
    batch_size: int = 32,
) -> Iterator[tuple[list[int], int, dict[str, Tensor]]]:
    """Yield the numbers of some prompts, and what `AnswerScorer` takes of them, longest first.

    In between comes how many tokens they begin with alike, if it is worth reading these ahead.
    Raises the DataErrors of `likelihood` that need no weights.
    """
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise DataError(f"likelihood: batch_size = {batch_size!r} is not a whole number from 1 on.")
    prompts, answers = _listed("prompts", prompts), _listed("answers", answers)
    shared = bool(answers) and all(isinstance(answer, str) for answer in answers)
    table = [_listed("answers", row) for row in ([answers] * len(prompts) if shared else answers)]
    for text in (*prompts, *(text for row in table for text in row)):
        if not isinstance(text, str) or LONE.search(text):
            raise DataError(f"likelihood: {format_value(text)} is not a text of whole characters.")
    if not prompts or len(table) != len(prompts) or not table[0] or len({*map(len, table)}) > 1:
        raise DataError(
            f"likelihood: got {len(prompts)} prompts and {len(answers)} answers or answer lists. "
            "Give at least one prompt, and either one list of answers for all prompts or one list "
            "of the same length for each."
        )
    encodes = bool(getattr(config, "is_encoder_decoder", False))
    starts = prompt_tokens(tokenizer, prompts, encoder_decoder=encodes)
    cache: dict[tuple[str, str], list[int]] = {}

    def plain(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def tokens(prompt: str, answer: str) -> list[int]:
        tail = "" if encodes else prompt[-1:]
        if (tail, answer) not in cache:
            cache[tail, answer] = continuation(plain, tail, answer)
            if not cache[tail, answer]:
                raise DataError(f"likelihood: the answer {answer!r} has no tokens.")
        return cache[tail, answer]

    pad = int(tokenizer.pad_token_id or tokenizer.eos_token_id or 0)
    most = usable_length(config.get_text_config())
    for group, shared in [([*range(len(starts))], 0)] if encodes else alike(starts):
        order = sorted(group, key=lambda i: -len(starts[i]))
        while order:
            size = min(batch_size, max(1, PROMPT_TOKENS // len(starts[order[0]])))
            width = len(starts[order[0]])
            choices = [[tokens(prompts[i], answer) for answer in table[i]] for i in order[:size]]
            longest = [max(map(len, row)) for row in choices]
            if most and not encodes:
                for i, length in zip(order, longest, strict=False):
                    if len(starts[i]) + length - 1 > most:
                        raise DataError(
                            f"likelihood: a prompt of {len(starts[i])} tokens and an answer of "
                            f"{length} exceed the model's {most} positions. Shorten the prompt."
                        )
                while width + max(longest) - 1 > most:  # padding, of which a row alone has none
                    longest.pop()
            rows, order = order[: len(longest)], order[len(longest) :]
            ids = torch.tensor([starts[i] + [pad] * (width - len(starts[i])) for i in rows])
            sizes = torch.tensor([len(starts[i]) for i in rows])
            mask = (torch.arange(width) < sizes[:, None]).long()
            own = choices[: len(rows)]
            padded = [[t + [-1] * (max(longest) - len(t)) for t in row] for row in own]
            candidates = torch.tensor(padded)
            yield rows, shared, {"input_ids": ids, "attention_mask": mask, "candidates": candidates}
