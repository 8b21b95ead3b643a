"""Small random checkpoints of the architectures that a method must work on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clbench.models.checkpoint import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ARCHITECTURES = ("bert", "roberta", "albert", "distilbert", "gpt2")
WORDS = (
    *("the", "a", "film", "plot", "story", "was", "is", "good", "bad", "not", "very", "dull"),
    *("bright", "and", "of", "it", "long", "short", "old", "new", "seen", "heard", "told"),
)
"""What the rows of the checks are made of."""
_SIZE = 40
_SHAPE = {
    "vocab_size": _SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}


@cache
def checkpoint(kind: str) -> str:
    """Folder of a random model of that architecture with its tokenizer.

    Made once for a process and removed with it. The weights are the same on every machine
    with one version of torch, and are well away from zero.
    """
    folder = Path(_root().name) / kind
    build, save_tokenizer = _makers()[kind]
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(7)
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        model.save_pretrained(folder)
        save_tokenizer(folder)
    return str(folder)


@cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="clbench-check-")


def _makers() -> dict[str, tuple[Callable[[], PreTrainedModel], Callable[[Path], None]]]:
    import transformers as hf

    distilbert: dict[str, Any] = {
        "vocab_size": _SIZE,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 48,
        "max_position_embeddings": 40,
    }
    gpt2: dict[str, Any] = {
        "vocab_size": _SIZE,
        "n_positions": 40,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return {
        "bert": (lambda: hf.BertModel(hf.BertConfig(**_SHAPE)), _wordpiece),
        "roberta": (
            lambda: hf.RobertaModel(hf.RobertaConfig(type_vocab_size=1, **_SHAPE)),
            _roberta_tokens,
        ),
        "albert": (
            lambda: hf.AlbertModel(hf.AlbertConfig(embedding_size=16, **_SHAPE)),
            _unigram,
        ),
        "distilbert": (lambda: hf.DistilBertModel(hf.DistilBertConfig(**distilbert)), _wordpiece),
        "gpt2": (lambda: hf.GPT2Model(hf.GPT2Config(**gpt2)), _gpt_tokens),
    }


def _wordpiece(folder: Path) -> None:
    import transformers as hf

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    numbers = {token: i for i, token in enumerate([*special, *WORDS])}
    hf.BertTokenizer(vocab=numbers).save_pretrained(folder)


def _unigram(folder: Path) -> None:
    import transformers as hf

    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [(token, 0.0) for token in special] + [(f"▁{word}", -1.0) for word in WORDS]
    hf.AlbertTokenizer(vocab=pieces).save_pretrained(folder)


def _roberta_tokens(folder: Path) -> None:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    _words(
        folder,
        special,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def _gpt_tokens(folder: Path) -> None:
    end = "<|endoftext|>"
    _words(folder, [end], unk_token=end, eos_token=end)


def _words(folder: Path, special: Sequence[str], **named: str) -> None:
    """A tokenizer by words; `special` tokens in the order of their numbers."""
    import transformers as hf
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {token: i for i, token in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=named["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if "cls_token" in named:
        start, end = named["cls_token"], named["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {end} {end} $B {end}",
            special_tokens=[(start, numbers[start]), (end, numbers[end])],
        )
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
