"""Log-probabilities of answers to prompts under a language model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from clbench.core.errors import DataError, format_value
from clbench.models.beginnings import Behind, alike, reads_ahead
from clbench.models.classifier import evaluating
from clbench.models.families import attention_window, usable_length

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

LOGITS = 1 << 26
"""Most logits at a time."""
ROWS = 256
"""Most sequences at a time where every answer needs one of its own."""
PROMPT_TOKENS = 1 << 13
"""Most tokens of prompts at a time."""
TOLERANCE = 1e-3
"""Largest difference, in nats, from a plain pass for a model to read all answers at once."""
COARSE = 0.5
"""The same where weights are in bf16."""
LONE = re.compile("[\ud800-\udfff]")
"""Half of a pair of surrogates, which is no character."""


@dataclass(frozen=True)
class AnswerTree:
    """The answers to a prompt, with the tokens that several of them begin with only once.

    Attributes
    ----------
    tokens
        Shape (u,): tokens that are read, which are all but the last of each answer.
    depths
        Shape (u,): positions of these tokens behind the prompt, from 0.
    sees
        Shape (u, u): which of these tokens each one attends to.
    source
        Shape (k, a): where each token of an answer is predicted: 0 is the prompt's last token, i
        the tree's token i − 1; 0 behind an answer.
    """

    tokens: Tensor
    depths: Tensor
    sees: Tensor
    source: Tensor

    @classmethod
    def of(cls, answers: Sequence[Sequence[int]]) -> AnswerTree:
        """Return the tree of answers, each a list of tokens."""
        numbers: dict[tuple[int, ...], int] = {}
        longest = max(map(len, answers))
        source = torch.zeros((len(answers), longest), dtype=torch.int64)
        for i, answer in enumerate(answers):
            for end in range(1, len(answer)):
                start = tuple(answer[:end])
                source[i, end] = 1 + numbers.setdefault(start, len(numbers))
        sees = torch.zeros((len(numbers), len(numbers)), dtype=torch.bool)
        for start, number in numbers.items():
            for end in range(1, len(start) + 1):
                sees[number, numbers[start[:end]]] = True
        return cls(
            torch.tensor([start[-1] for start in numbers], dtype=torch.int64),
            torch.tensor([len(start) - 1 for start in numbers], dtype=torch.int64),
            sees,
            source,
        )


class AnswerScorer:
    """Computes the log-probabilities of answers to prompts.

    One pass reads each prompt and, behind it, a tree of all its answers, in which each token
    attends to the prompt and to its own answer only; the prompt's keys and values thus serve all
    answers. Encoder-decoders read the prompt once and answers one by one. A model for which the
    first row shows that it does not allow this, as it derives positions in another way, reads every
    answer with the whole prompt.

    Parameters
    ----------
    model
        A causal or encoder-decoder language model of transformers.
    pad_id
        Token id of padding.
    mean
        Whether to divide by the number of an answer's tokens.
    """

    def __init__(self, model: PreTrainedModel, *, pad_id: int = 0, mean: bool = False) -> None:
        self._model: Any = model
        self._pad_id = pad_id
        self._mean = mean
        self._encodes = bool(getattr(model.config, "is_encoder_decoder", False))
        self._window = attention_window(model.config)
        self._at_once: bool | None = None  # not known yet
        self._checked = 0  # tokens of the longest row that showed it
        self._trees: dict[tuple[str, bytes], AnswerTree] = {}

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the scores of all answers, float32, shape (b, k).

        `inputs` has ``input_ids`` and ``attention_mask``, shape (b, t), padded on the right, and
        ``candidates``, shape (b, k, a), with -1 behind answers.
        """
        prompts = inputs["input_ids"], inputs["attention_mask"]
        candidates = inputs["candidates"]
        width = int(self._model.config.get_text_config().vocab_size)
        tokens = max(1, int((candidates[0] >= 0).sum()))
        size = max(1, LOGITS // (tokens * width))
        parts = [
            self._part(*(values[start : start + size] for values in (*prompts, candidates)))
            for start in range(0, len(candidates), size)
        ]
        scores = torch.cat(parts)
        return scores / (candidates >= 0).sum(-1) if self._mean else scores

    def _part(self, ids: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        if self._encodes:
            return self._decoded(ids, mask, candidates)
        if candidates.shape[-1] == 1:
            last = (mask.sum(1) - 1)[:, None]
            logits = self._logits(last, input_ids=ids, attention_mask=mask)[:, 0]
            return logits.log_softmax(-1).gather(1, candidates[..., 0])
        longest = int(mask.sum(1).max()) + candidates.shape[-1]
        if self._window is not None and longest > self._window:
            return self._apart(ids, mask, candidates)
        # What differs between the two ways may show only in longer rows.
        if self._at_once is None or longest > 2 * self._checked:
            row = mask.sum(1).argmax()[None]
            self._at_once = self._at_once is not False and self._allows_trees(
                ids[row], mask[row], candidates[row, :3]
            )
            self._checked = longest
        return (self._together if self._at_once else self._apart)(ids, mask, candidates)

    def _allows_trees(self, ids: Tensor, mask: Tensor, candidates: Tensor) -> bool:
        """Whether the model gives one row the same scores in both ways."""
        if getattr(self._model, "_is_stateful", False):
            return False
        if "position_ids" not in signature(self._model.forward).parameters:
            return False
        exact = self._model.dtype == torch.float32
        with torch.autocast(ids.device.type, enabled=False):
            apart = self._apart(ids, mask, candidates)
            try:
                together = self._together(ids, mask, candidates)
            except (RuntimeError, TypeError, ValueError, IndexError):
                return False
        return bool((apart - together).abs().max() <= (TOLERANCE if exact else COARSE))

    def _tree(self, answers: Tensor) -> AnswerTree:
        """Return the tree of answers, shape (k, a)."""
        key = str(answers.shape), answers.cpu().numpy().tobytes()
        if key not in self._trees:
            if len(self._trees) >= ROWS:
                self._trees.clear()
            rows = [[t for t in answer if t >= 0] for answer in answers.tolist()]
            self._trees[key] = AnswerTree.of(rows)
        return self._trees[key]

    def _together(self, ids: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Read the prompt and the tree of its answers in one pass."""
        device, (rows, width) = ids.device, ids.shape
        trees = [self._tree(answers) for answers in candidates]
        most = max(len(tree.tokens) for tree in trees)
        tokens = torch.full((rows, most), self._pad_id, device=device)
        lengths = mask.sum(1)
        positions = torch.zeros((rows, most), dtype=torch.int64, device=device)
        inside = torch.eye(most, dtype=torch.bool, device=device).repeat(rows, 1, 1)
        source = torch.zeros_like(candidates)
        shared = all(tree is trees[0] for tree in trees)
        for i, tree in enumerate(trees[:1] if shared else trees):
            at = slice(None) if shared else i
            u, a = len(tree.tokens), tree.source.shape[1]
            tokens[at, :u] = tree.tokens.to(device)
            positions[at, :u] = tree.depths.to(device)
            inside[at, :u, :u] = tree.sees.to(device)
            source[at, :, :a] = tree.source.to(device)
        positions += lengths[:, None]
        real = mask.bool()
        causal = torch.ones((width, width), dtype=torch.bool, device=device).tril()
        before = (causal & real[:, None]) | torch.eye(width, dtype=torch.bool, device=device)
        prompt = torch.cat([before, before.new_zeros((rows, width, most))], 2)
        answers = torch.cat([real[:, None].expand(-1, most, -1), inside], 2)
        last = lengths - 1
        picked = torch.cat(
            [last[:, None], width + torch.arange(most, device=device).repeat(rows, 1)], 1
        )
        logits = self._logits(
            picked,
            input_ids=torch.cat([ids, tokens], 1),
            attention_mask=torch.cat([prompt, answers], 1)[:, None],
            position_ids=torch.cat([(mask.cumsum(1) - 1).clamp(min=0), positions], 1),
        )
        chosen = candidates.clamp(min=0)
        whole = logits.logsumexp(-1).gather(1, source.flatten(1)).view(chosen.shape)
        flat = (source * logits.shape[-1] + chosen).flatten(1)
        scores = logits.flatten(1).gather(1, flat).view(chosen.shape) - whole
        return (scores * (candidates >= 0)).sum(-1)

    def _logits(self, picked: Tensor, **arguments: Tensor) -> Tensor:
        return logits_at(self._model, picked, **arguments).float()

    def _apart(self, ids: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Read every answer with its prompt."""
        rows, k, a = candidates.shape
        lengths = mask.sum(1).repeat_interleave(k)
        answers = candidates.reshape(rows * k, a)
        at = lengths[:, None] + torch.arange(a, device=ids.device)
        filled = torch.nn.functional.pad(ids, (0, a - 1), value=self._pad_id)
        table = filled.repeat_interleave(k, 0)
        read = answers[:, :-1]
        table.scatter_(1, at[:, :-1], read.clamp(min=0))
        lengths = lengths + (read >= 0).sum(1)
        real = torch.arange(table.shape[1], device=ids.device) < lengths[:, None]
        scores = []
        for start in range(0, rows * k, ROWS):
            part = slice(start, start + ROWS)
            logits = self._logits(
                at[part] - 1, input_ids=table[part], attention_mask=real[part].long()
            )
            scores.append(_sums(logits, answers[part]))
        return torch.cat(scores).view(rows, k)

    def _decoded(self, ids: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Encode the prompt once, and decode every answer."""
        from transformers.modeling_outputs import BaseModelOutput

        rows, k, a = candidates.shape
        hidden = self._model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        start = int(self._model.config.decoder_start_token_id)
        answers = candidates.reshape(rows * k, a)
        before = torch.cat([torch.full_like(answers[:, :1], start), answers[:, :-1]], 1)
        scores = []
        step = max(1, ROWS // k)
        for i in range(0, rows, step):
            part = slice(i * k, (i + step) * k)
            logits = self._model(
                encoder_outputs=BaseModelOutput(hidden[i : i + step].repeat_interleave(k, 0)),
                attention_mask=mask[i : i + step].repeat_interleave(k, 0),
                decoder_input_ids=before[part].clamp(min=0),
                use_cache=False,
            ).logits
            scores.append(_sums(logits.float(), answers[part]))
        return torch.cat(scores).view(rows, k)


@contextmanager
def only_at(model: Any, positions: Tensor) -> Iterator[list[bool]]:
    """Let the language-model head see only these positions, shape (b, m), of the last layer.

    Yields a list that is no longer empty once they were picked: some models do not call their body.
    """
    picks: list[bool] = []

    def pick(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
        picks.append(True)
        picked = _at(output[0], positions)
        if isinstance(output, tuple):
            return (picked, *output[1:])
        output.last_hidden_state = picked
        return output

    handle = model.base_model.register_forward_hook(pick)
    try:
        yield picks
    finally:
        handle.remove()


def logits_at(model: Any, positions: Tensor, *, caller: Any = None, **arguments: Any) -> Tensor:
    """Return a decoder's logits at positions (b, m), computed only there if the model allows.

    `caller` is a module around the model to call in its place.
    """
    with only_at(model, positions) as picks:
        logits: Tensor = (caller or model)(**arguments, use_cache=False).logits
    if picks:
        return logits
    return _at(logits, positions)


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """Return the vectors at positions (b, m), counted through as many sequences as there are."""
    values = values.reshape(len(positions), -1, values.shape[-1])
    return values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))


def _sums(logits: Tensor, answers: Tensor) -> Tensor:
    """Return the log-probabilities of tokens (n, a), -1 for none, under logits (n, a, v): (n,)."""
    chosen = logits.gather(-1, answers.clamp(min=0)[..., None]).squeeze(-1)
    return ((chosen - logits.logsumexp(-1)) * (answers >= 0)).sum(-1)


def continuation(tokens: Callable[[str], list[int]], before: str, text: str) -> list[int]:
    """Return the tokens of `text` as it follows `before`, or alone if the tokenizer joins them."""
    start, whole = tokens(before), tokens(before + text)
    return (whole[len(start) :] if whole[: len(start)] == start else []) or tokens(text)


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
    starts = [list(row) for row in tokenizer(list(prompts))["input_ids"]]
    if not all(starts):
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        if (start := eos if bos is None else bos) is None:
            raise DataError("likelihood: the tokenizer has no token for an empty prompt.")
        starts = [row or [int(start)] for row in starts]
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
            rows, order = order[:size], order[size:]
            width = len(starts[rows[0]])
            ids = torch.tensor([starts[i] + [pad] * (width - len(starts[i])) for i in rows])
            sizes = torch.tensor([len(starts[i]) for i in rows])
            mask = (torch.arange(width) < sizes[:, None]).long()
            choices = [[tokens(prompts[i], answer) for answer in table[i]] for i in rows]
            longest = max(len(t) for row in choices for t in row)
            if not encodes and most and width + longest - 1 > most:
                raise DataError(
                    f"likelihood: a prompt of {width} tokens and an answer of {longest} exceed the "
                    f"model's {most} positions. Shorten the prompt."
                )
            padded = [[t + [-1] * (longest - len(t)) for t in row] for row in choices]
            candidates = torch.tensor(padded)
            yield rows, shared, {"input_ids": ids, "attention_mask": mask, "candidates": candidates}
