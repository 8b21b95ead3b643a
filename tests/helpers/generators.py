"""Small random language models with a byte-level tokenizer, created offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

END, PAD = "<|end|>", "<|pad|>"
CHAT = (
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


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


SIZE = len(make_tokenizer())
SHAPE = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}

GENERATORS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=SIZE,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=128,
            bos_token_id=1,
            eos_token_id=1,
        )
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama-untied": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SHAPE, num_key_value_heads=1)),
    "mistral": lambda: hf.MistralForCausalLM(
        hf.MistralConfig(**SHAPE, num_key_value_heads=1, sliding_window=16)
    ),
    "bloom": lambda: hf.BloomForCausalLM(
        hf.BloomConfig(vocab_size=SIZE, hidden_size=32, n_layer=2, n_head=2, pad_token_id=0)
    ),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=SIZE,
            hidden_size=32,
            word_embed_proj_dim=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=48,
            max_position_embeddings=128,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )
    ),
    "gptj": lambda: hf.GPTJForCausalLM(
        hf.GPTJConfig(
            vocab_size=SIZE,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=128,
            rotary_dim=8,
            bos_token_id=1,
            eos_token_id=1,
        )
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=SIZE,
            d_model=32,
            d_kv=16,
            d_ff=48,
            num_layers=2,
            num_heads=2,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
        )
    ),
}
"""By name: decoders of several kinds, some of which cannot pack rows or read trees, and T5."""


def make_generator(name: str) -> Any:
    """Return a random model in evaluation mode whose outputs differ clearly."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GENERATORS[name]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.float().eval()


def save_generator(name: str, folder: Path, **tokenizer: bool) -> Path:
    """Save a model and its tokenizer."""
    make_generator(name).save_pretrained(folder)
    make_tokenizer(**tokenizer).save_pretrained(folder)
    return folder
