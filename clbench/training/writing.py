"""What a language model writes for rows of prompts, greedily or drawn from a named stream."""

import hashlib
from collections.abc import Sequence
from itertools import chain, zip_longest

import numpy as np
import torch
import transformers
from torch import Tensor

from clbench.core.files import Facts, cached_tensors
from clbench.core.shapes import only_shapes
from clbench.models.answering import write
from clbench.models.classifier import evaluating
from clbench.models.encoding import EncodedRows, PromptRows, TokenArray
from clbench.models.families import usable_length
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.device import circumstances, return_old_memory
from clbench.training.stage import Stage

Tokens = list[int]


def write_rows(
    context: Context,
    data: TaskData,
    stops: Sequence[int],
    most: int,
    draws: Tensor | None = None,
    temperature: float = 1.0,
) -> list[Tokens]:
    """Return the tokens that the model writes for each row, the one that ends it included.

    Each row gets the text that it gets alone, up to rounding: at most `most` tokens, and none
    beyond the model's positions. Parameters as in `clbench.models.answering.write`.
    """
    config, lengths, ends = context.model.config, data.rows.lengths, {*stops}
    room = np.full(len(lengths), most)
    limit = usable_length(config)
    if limit is not None and not getattr(config, "is_encoder_decoder", False):
        room = (limit - lengths).clip(1, most)
    size = context.protocol.eval_batch_size
    texts: dict[int, Tokens] = {}
    with evaluating(context.model), context.precision.autocast():
        for part in np.unique(room):
            same = np.flatnonzero(room == part)
            order = same[np.argsort(-lengths[same], kind="stable")]
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                inputs = data.batch(rows, context.device).inputs
                own = None if draws is None else draws[rows]
                work = context.model.backbone, inputs, stops, int(part)
                written = write(*work, pad_id=data.pad_id, draws=own, temperature=temperature)
                for row, tokens in zip(rows.tolist(), written.tolist(), strict=True):
                    end = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
                    texts[row] = tokens[: end + 1]
                return_old_memory()
    return [texts[row] for row in range(len(lengths))]


def draw_rows(
    stage: Stage, data: TaskData, stops: Sequence[int], most: int, temperature: float
) -> list[Tokens]:
    """Return what the model, as it is now, writes for each row, drawn from a stream of the stage.

    Texts are stored in the user's cache by weights, rows, settings and seed. Parameters as in
    `write_rows`.
    """
    rows, seed = data.rows, stage.random_seed("written")
    if only_shapes():
        return [[0] * most for _ in range(len(rows))]
    content = hashlib.blake2b(rows.ids.tobytes() + rows.offsets.tobytes(), digest_size=16)
    for name, value in stage.model.named_parameters():
        content.update(name.encode())
        content.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    key = {
        "weights and prompts": content.hexdigest(),
        "settings": [list(stops), most, temperature, stage.protocol.eval_batch_size, seed],
        **circumstances(stage.model_name, stage.revision, stage.device, stage.precision),
    }

    def compute() -> tuple[dict[str, Tensor], Facts]:
        draws = uniform((len(rows), most), torch.Generator().manual_seed(seed))
        texts = write_rows(stage, data, stops, most, draws, temperature)
        return {"texts": torch.from_numpy(padded_tokens(texts))}, {}

    stored, _ = cached_tensors("written", key, compute)
    return [[token for token in text if token >= 0] for text in stored["texts"].tolist()]


def uniform(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return the numbers that draw tokens."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def lines(tokenizer: transformers.PreTrainedTokenizerBase, texts: Sequence[Tokens]) -> list[str]:
    """Return the first line of each text, without special tokens and blanks around it."""
    words = tokenizer.batch_decode(texts, skip_special_tokens=True)
    return [text.partition("\n")[0].strip() for text in words]


def prompt_rows(prompts: Sequence[Tokens], answers: Sequence[Tokens] | None = None) -> PromptRows:
    """Return rows of tokenised prompts, with answers to train on if given."""
    return PromptRows(
        np.fromiter(chain.from_iterable(prompts), np.int32),
        None,
        np.cumsum([0, *map(len, prompts)]).astype(np.int64),
        np.zeros(len(prompts), np.int64),
        answers=None if answers is None else padded_tokens(answers),
    )


def prompts_of(rows: EncodedRows) -> list[Tokens]:
    """Return the tokens of the rows' prompts."""
    return [part.tolist() for part in np.split(rows.ids, rows.offsets[1:-1])]


def padded_tokens(texts: Sequence[Tokens]) -> TokenArray:
    """Return tokens as an array of shape (n, m), -1 behind them."""
    return np.array([*zip_longest(*texts, fillvalue=-1)], np.int32).T.copy()
