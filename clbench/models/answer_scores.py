"""The log-probabilities of answers to batches of prompts, of which a head computes few logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clbench.models.beginnings import GAP
from clbench.models.families import attention_window

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOGITS = 1 << 26
"""Most logits at a time."""
ROWS = 256
"""Most sequences at a time where every answer needs one of its own."""


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
        with torch.autocast(ids.device.type, enabled=False):
            apart = self._apart(ids, mask, candidates)
            try:
                together = self._together(ids, mask, candidates)
            except (RuntimeError, TypeError, ValueError, IndexError):
                return False
        return bool((apart - together).abs().max() <= GAP[self._model.dtype == torch.float32])

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
