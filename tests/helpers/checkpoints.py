"""Small random checkpoints of every architecture, created offline.

A backbone has a tokenizer of sixteen words, a generator one of bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from clbench.models.locate import TINY_GPT

WORDS = [
    "the", "a", "film", "plot", "was", "is", "good", "bad",
    "not", "very", "dull", "bright", "story", "and", "of", "it",
]  # fmt: skip
COMMIT = "0123456789abcdef0123456789abcdef01234567"
END, PAD = "<|end|>", "<|pad|>"
CHAT = (
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


def _bert_tokenizer(folder: Path) -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    numbers = {token: i for i, token in enumerate(vocabulary)}
    hf.BertTokenizer(vocab=numbers).save_pretrained(folder)


def _word_tokenizer(special: str, **named: str) -> Callable[[Path], None]:
    """Words and special tokens; `special` in the order of their numbers, then the words."""

    def save(folder: Path) -> None:
        numbers = {token: i for i, token in enumerate([*special.split(), *WORDS])}
        tokens = {f"{name}_token": token for name, token in named.items()}
        tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=named["unk"]))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        if "cls" in named:
            start, end = named["cls"], named["sep"]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{start} $A {end}",
                pair=f"{start} $A {end} {end} $B {end}",
                special_tokens=[(start, numbers[start]), (end, numbers[end])],
            )
        hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)

    return save


def _unigram_tokenizer(kind: type, first: str) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        pieces = [(token, 0.0) for token in first.split()] + [(f"▁{word}", -1.0) for word in WORDS]
        kind(vocab=pieces).save_pretrained(folder)

    return save


def make_tokenizer(*, chat: bool = False, appends_end: bool = False) -> Any:
    """Bytes, ``Ġyes`` and ``Ġno`` as one token each, and two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "y"), ("Ġy", "e"), ("Ġye", "s"), ("Ġ", "n"), ("Ġn", "o")]
    tokens = [PAD, END, *alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    tokenizer.decoder = decoders.ByteLevel()
    if appends_end:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {END}", special_tokens=[(END, 1)]
        )
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    if chat:
        fast.chat_template = CHAT
    return fast


ROBERTA_TOKENS = _word_tokenizer(
    "<s> <pad> </s> <unk> <mask>", cls="<s>", sep="</s>", pad="<pad>", unk="<unk>", mask="<mask>"
)
MODERN_TOKENS = _word_tokenizer(
    "|||IP||| [UNK] [CLS] [SEP] [PAD] [MASK]",
    cls="[CLS]",
    sep="[SEP]",
    pad="[PAD]",
    unk="[UNK]",
    mask="[MASK]",
)
ALBERT_TOKENS = _unigram_tokenizer(hf.AlbertTokenizer, "<pad> <unk> [CLS] [SEP] [MASK]")
DEBERTA_TOKENS = _unigram_tokenizer(hf.DebertaV2Tokenizer, "[PAD] [UNK] [CLS] [SEP] [MASK]")
GPT_TOKENS = _word_tokenizer("<|endoftext|>", unk="<|endoftext|>", eos="<|endoftext|>")
LLAMA_TOKENS = _word_tokenizer("<unk> <s> </s>", unk="<unk>", eos="</s>")

SHAPE = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
BACKBONE = {**SHAPE, "vocab_size": 60, "num_hidden_layers": 3, "max_position_embeddings": 40}
GENERATOR = {
    **SHAPE,
    "vocab_size": len(make_tokenizer()),
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


@dataclass(frozen=True)
class Architecture:
    """What the checkpoints of an architecture need besides the common shape.

    Attributes
    ----------
    words
        Saves the tokenizer of the backbone; None if there is no backbone of it here.
    backbone, generator
        Settings of the backbone and of the language model; None if there is no such model here.
    kind
        The model type, if it is not the name in the table.
    """

    words: Callable[[Path], None] | None = None
    backbone: dict[str, Any] = field(default_factory=dict)
    generator: dict[str, Any] | None = None
    kind: str = ""


ARCHITECTURES = {
    "bert": Architecture(_bert_tokenizer),
    "roberta": Architecture(ROBERTA_TOKENS, {"type_vocab_size": 1}),
    "distilbert": Architecture(_bert_tokenizer, {"hidden_dim": 48}),
    "albert": Architecture(ALBERT_TOKENS, {"embedding_size": 16, "num_hidden_groups": 2}),
    "electra": Architecture(_bert_tokenizer, {"embedding_size": 16}),
    "deberta-v2": Architecture(
        DEBERTA_TOKENS,
        {
            "relative_attention": True,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "type_vocab_size": 0,
            "conv_kernel_size": 3,
            "pad_token_id": 0,
        },
    ),
    "modernbert": Architecture(
        MODERN_TOKENS,
        {
            "local_attention": 8,
            "pad_token_id": 4,
            **dict.fromkeys(("cls_token_id", "bos_token_id"), 2),
            **dict.fromkeys(("sep_token_id", "eos_token_id"), 3),
        },
    ),
    "gpt2": Architecture(GPT_TOKENS, {"bos_token_id": 0, "eos_token_id": 0}, {}),
    "mpnet": Architecture(ROBERTA_TOKENS),
    "xlm": Architecture(ROBERTA_TOKENS, {"pad_token_id": 1, "pad_index": 1}),
    "llama": Architecture(LLAMA_TOKENS, {"pad_token_id": None}, {"tie_word_embeddings": True}),
    "gpt_neox": Architecture(GPT_TOKENS, {"bos_token_id": 0, "eos_token_id": 0}),
    "llama-untied": Architecture(generator={"tie_word_embeddings": False}, kind="llama"),
    "qwen2": Architecture(generator={"num_key_value_heads": 1}),
    "mistral": Architecture(generator={"num_key_value_heads": 1, "sliding_window": 16}),
    "bloom": Architecture(generator={}),
    "opt": Architecture(generator={"word_embed_proj_dim": 32, "ffn_dim": 48}),
    "gptj": Architecture(generator={"rotary_dim": 8}),
    "t5": Architecture(
        generator={"d_kv": 16, "d_ff": 48, "num_layers": 2, "decoder_start_token_id": 0}
    ),
}
COMMON = tuple(ARCHITECTURES)[:8]
"""Architectures that users have most; they come first."""
CHECKPOINTS = tuple(name for name, a in ARCHITECTURES.items() if a.words is not None)
GENERATORS = tuple(name for name, a in ARCHITECTURES.items() if a.generator is not None)
"""Decoders of several kinds, some of which cannot pack rows or read trees, and T5."""


def _random_model(auto: Any, name: str, settings: dict[str, Any], seed: int, size: float) -> Any:
    """Return a model with weights well away from zero, so that errors show."""
    config = hf.AutoConfig.for_model(ARCHITECTURES[name].kind or name, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(size * torch.randn(parameter.shape))
    return model.float().eval()


def make_checkpoint(name: str, folder: Path) -> Path:
    """Save a random backbone and its tokenizer."""
    architecture = ARCHITECTURES[name]
    assert architecture.words is not None
    model = _random_model(hf.AutoModel, name, {**BACKBONE, **architecture.backbone}, 7, 0.15)
    model.save_pretrained(folder)
    architecture.words(folder)
    return folder


def make_generator(name: str) -> Any:
    """Return a random language model in evaluation mode."""
    auto = hf.AutoModelForSeq2SeqLM if name == "t5" else hf.AutoModelForCausalLM
    return _random_model(auto, name, {**GENERATOR, **(ARCHITECTURES[name].generator or {})}, 0, 0.1)


def save_generator(name: str, folder: Path, **tokenizer: bool) -> Path:
    """Save a random language model and its tokenizer."""
    make_generator(name).save_pretrained(folder)
    make_tokenizer(**tokenizer).save_pretrained(folder)
    return folder


def without_padding(folder: Path) -> str:
    """Save the built-in decoder without a padding token, as GPT-2 and Llama come."""
    shutil.copytree(TINY_GPT, folder)
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / name).read_text())
        kept = {key: value for key, value in values.items() if not key.startswith("pad_token")}
        (folder / name).write_text(json.dumps(kept))
    return str(folder)


def as_download(original: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Turn `cache` into a hub cache that holds a copy as someone/model; return the snapshot."""
    repository = cache / "models--someone--model"
    snapshot = repository / "snapshots" / COMMIT
    shutil.copytree(original, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return snapshot
