"""Small random checkpoints of every family, created offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [
    "the",
    "a",
    "film",
    "plot",
    "was",
    "is",
    "good",
    "bad",
    "not",
    "very",
    "dull",
    "bright",
    "story",
    "and",
    "of",
    "it",
]
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
SIZE = 60


def _bert_tokenizer(folder: Path) -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    numbers = {token: i for i, token in enumerate(vocabulary)}
    hf.BertTokenizer(vocab=numbers).save_pretrained(folder)


def _word_tokenizer(special: list[str], **named: str) -> Callable[[Path], None]:
    """Words and special tokens; `special` in the order of their numbers, then the words."""

    def save(folder: Path) -> None:
        numbers = {token: i for i, token in enumerate([*special, *WORDS])}
        unknown = named.get("unk_token", special[0])
        tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        if "cls_token" in named:
            start, end = named["cls_token"], named["sep_token"]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{start} $A {end}",
                pair=f"{start} $A {end} {end} $B {end}",
                special_tokens=[(start, numbers[start]), (end, numbers[end])],
            )
        hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)

    return save


def _unigram_tokenizer(kind: type, first: list[str]) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        pieces = [(token, 0.0) for token in first] + [(f"▁{word}", -1.0) for word in WORDS]
        kind(vocab=pieces).save_pretrained(folder)

    return save


_ROBERTA_TOKENS = _word_tokenizer(
    ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    cls_token="<s>",
    sep_token="</s>",
    pad_token="<pad>",
    unk_token="<unk>",
    mask_token="<mask>",
)
_GPT_TOKENS = _word_tokenizer(
    ["<|endoftext|>"], unk_token="<|endoftext|>", eos_token="<|endoftext|>"
)
_LLAMA_TOKENS = _word_tokenizer(["<unk>", "<s>", "</s>"], unk_token="<unk>", eos_token="</s>")
_MODERN_TOKENS = _word_tokenizer(
    ["|||IP|||", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"],
    cls_token="[CLS]",
    sep_token="[SEP]",
    pad_token="[PAD]",
    unk_token="[UNK]",
    mask_token="[MASK]",
)

Recipe = tuple[Callable[[], Any], Callable[[Path], None]]
CHECKPOINTS: dict[str, Recipe] = {
    "bert": (lambda: hf.BertModel(hf.BertConfig(vocab_size=SIZE, **SHAPE)), _bert_tokenizer),
    "roberta": (
        lambda: hf.RobertaModel(hf.RobertaConfig(vocab_size=SIZE, type_vocab_size=1, **SHAPE)),
        _ROBERTA_TOKENS,
    ),
    "distilbert": (
        lambda: hf.DistilBertModel(
            hf.DistilBertConfig(
                vocab_size=SIZE,
                dim=32,
                n_layers=3,
                n_heads=2,
                hidden_dim=48,
                max_position_embeddings=40,
            )
        ),
        _bert_tokenizer,
    ),
    "albert": (
        lambda: hf.AlbertModel(
            hf.AlbertConfig(vocab_size=SIZE, embedding_size=16, num_hidden_groups=2, **SHAPE)
        ),
        _unigram_tokenizer(hf.AlbertTokenizer, ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    ),
    "electra": (
        lambda: hf.ElectraModel(hf.ElectraConfig(vocab_size=SIZE, embedding_size=16, **SHAPE)),
        _bert_tokenizer,
    ),
    "deberta-v2": (
        lambda: hf.DebertaV2Model(
            hf.DebertaV2Config(
                vocab_size=SIZE,
                relative_attention=True,
                position_buckets=8,
                norm_rel_ebd="layer_norm",
                share_att_key=True,
                pos_att_type=["p2c", "c2p"],
                position_biased_input=False,
                type_vocab_size=0,
                conv_kernel_size=3,
                pad_token_id=0,
                **SHAPE,
            )
        ),
        _unigram_tokenizer(hf.DebertaV2Tokenizer, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
    ),
    "modernbert": (
        lambda: hf.ModernBertModel(
            hf.ModernBertConfig(
                vocab_size=SIZE,
                local_attention=8,
                pad_token_id=4,
                cls_token_id=2,
                sep_token_id=3,
                bos_token_id=2,
                eos_token_id=3,
                **SHAPE,
            )
        ),
        _MODERN_TOKENS,
    ),
    "gpt2": (
        lambda: hf.GPT2Model(
            hf.GPT2Config(
                vocab_size=SIZE,
                n_positions=40,
                n_embd=32,
                n_layer=3,
                n_head=2,
                bos_token_id=0,
                eos_token_id=0,
            )
        ),
        _GPT_TOKENS,
    ),
    "mpnet": (lambda: hf.MPNetModel(hf.MPNetConfig(vocab_size=SIZE, **SHAPE)), _ROBERTA_TOKENS),
    "xlm": (
        lambda: hf.XLMModel(
            hf.XLMConfig(
                vocab_size=SIZE,
                emb_dim=32,
                n_layers=3,
                n_heads=2,
                max_position_embeddings=40,
                pad_token_id=1,
                pad_index=1,
            )
        ),
        _ROBERTA_TOKENS,
    ),
    "llama": (
        lambda: hf.LlamaModel(hf.LlamaConfig(vocab_size=SIZE, pad_token_id=None, **SHAPE)),
        _LLAMA_TOKENS,
    ),
    "gpt_neox": (
        lambda: hf.GPTNeoXModel(
            hf.GPTNeoXConfig(vocab_size=SIZE, eos_token_id=0, bos_token_id=0, **SHAPE)
        ),
        _GPT_TOKENS,
    ),
}
COMMON = (
    "bert",
    "roberta",
    "distilbert",
    "albert",
    "electra",
    "deberta-v2",
    "modernbert",
    "gpt2",
)


def make_checkpoint(kind: str, folder: Path) -> Path:
    """Save a random model with tokenizer; weights well away from zero, so that errors show."""
    build, save_tokenizer = CHECKPOINTS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.15 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder
