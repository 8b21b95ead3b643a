"""A small decoder: byte-level tokenizer, windows of running text, and network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from clbench.training.device import Precision
from tools.pretrain_tiny.encode import EncodedRows
from tools.pretrain_tiny.network import Shape, write_checkpoint

Ints = npt.NDArray[np.int64]
PAD, END = "<|pad|>", "<|endoftext|>"


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train byte-level BPE, which decodes any text to itself; each digit is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_bpe(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the tokenizer so that ``AutoTokenizer.from_pretrained(folder)`` loads it."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    wrapped.save_pretrained(folder)


@dataclass(frozen=True)
class RunningText:
    """Segments as one stream of tokens, read in windows.

    Attributes
    ----------
    stream
        Shape (n,): all tokens. A line break ends a segment that the next one belongs to, the end
        token any other.
    window
        Tokens that a window predicts.
    budget
        Tokens of a batch.
    """

    stream: npt.NDArray[np.int32]
    window: int
    budget: int

    @classmethod
    def of(
        cls,
        encoded: EncodedRows,
        pairs: npt.NDArray[np.int32],
        tokenizer: Tokenizer,
        *,
        window: int,
        budget: int,
    ) -> RunningText:
        """Return the stream of all segments.

        Raises
        ------
        ValueError
            If they do not fill one window.
        """
        follows = np.zeros(len(encoded), dtype=bool)
        follows[pairs[pairs[:, 1] == pairs[:, 0] + 1, 0]] = True
        line = tokenizer.encode("\n").ids[0]
        marks = np.where(follows, line, int(tokenizer.token_to_id(END) or 0))
        stream = np.insert(encoded.ids, encoded.token_start[1:], marks).astype(np.int32)
        if len(stream) <= window:
            raise ValueError(f"the text is too short: fewer than {window + 1} tokens")
        return cls(stream, window, budget)

    def epoch(self, seed: list[int]) -> list[Ints]:
        """Return the batches of an epoch as starts of windows; each epoch cuts elsewhere."""
        rng = np.random.default_rng(seed)
        last = len(self.stream) - self.window
        starts = rng.permutation(np.arange(rng.integers(min(self.window, last)), last, self.window))
        count = max(1, self.budget // self.window)
        return [starts[i : i + count] for i in range(0, len(starts), count)]

    def batch(self, starts: Ints, rng: np.random.Generator | None = None) -> Tensor:
        """Return windows with the token after each, shape (b, window + 1)."""
        rows = self.stream[starts[:, None] + np.arange(self.window + 1)]
        return torch.from_numpy(rows.astype(np.int64))

    def tokens(self, starts: Ints) -> int:
        """Return the number of predicted tokens."""
        return len(starts) * self.window


class Decoder(nn.Module):
    """A Llama with tied embeddings."""

    weights = {"loss": 1.0}

    def __init__(self, shape: Shape, tokenizer: Tokenizer) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        end = tokenizer.token_to_id(END)
        config = LlamaConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=-(-8 * shape.hidden // 3 // 64) * 64,  # Shazeer 2020: SwiGLU
            max_position_embeddings=shape.positions,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.token_to_id(PAD),
            bos_token_id=end,
            eos_token_id=end,
            attn_implementation="eager",  # faster than the fused kernel backwards in bf16 on CPUs
        )
        self.net: Any = LlamaForCausalLM(config)

    def losses(self, batch: Tensor) -> dict[str, Tensor]:
        """Return the next-token cross-entropy, in nats, and accuracy of windows."""
        logits = self.net(input_ids=batch[:, :-1], use_cache=False).logits.float().flatten(0, 1)
        following = batch[:, 1:].flatten()
        right = (logits.detach().argmax(-1) == following).float()
        return {"loss": functional.cross_entropy(logits, following), "accuracy": right.mean()}

    def export(self, folder: Path) -> None:
        """Write ``config.json`` and half-precision weights that ``transformers`` loads."""
        config = {**self.net.config.to_dict(), "dtype": "float32"}
        config["architectures"] = ["LlamaForCausalLM"]
        tied = {"lm_head.weight"}
        weights = {n: v for n, v in self.net.state_dict().items() if n not in tied}
        write_checkpoint(type(self.net.config).from_dict(config), weights, folder)


def held_out_scores(
    student: Decoder, text: RunningText, precision: Precision, *, batches: int = 64
) -> dict[str, float]:
    """Return loss, in nats per token, and accuracy over windows of held-out text."""
    count = max(1, text.budget // text.window)
    starts = np.arange(0, len(text.stream) - text.window, text.window)
    parts: Sequence[Ints] = [starts[i : i + count] for i in range(0, len(starts), count)][:batches]
    totals = {"loss": 0.0, "accuracy": 0.0}
    with torch.no_grad(), precision.autocast():
        for part in parts:
            for name, value in student.losses(text.batch(part)).items():
                totals[name] += float(value) * len(part)
    rows = sum(map(len, parts))
    return {name: value / rows for name, value in totals.items()}
