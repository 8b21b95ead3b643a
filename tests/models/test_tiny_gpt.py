"""The built-in decoder is small, loads without a network, and has learned something."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

import clbench
from clbench.models.locate import local_folder
from clbench.tasks.synthetic import unlabelled

FOLDER = local_folder("tiny-gpt")


def test_it_is_small_and_complete() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert (FOLDER / "model.safetensors").stat().st_size <= 8_000_000
    facts = json.loads((FOLDER / "pretraining.json").read_text())
    assert facts["curve"][-1]["held_out_accuracy"] > 3 * facts["unigram_rate"]


def test_any_text_decodes_to_itself() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for text in ("The soup was good.\nSentiment: {positive}", "  näïve — 12 [PAD]"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.model_max_length == 256
    assert None not in (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_it_predicts_english_better_than_shuffled_english() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, report = AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not report["missing_keys"]
    assert next(model.parameters()).dtype == torch.float32
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    texts = unlabelled(40, held_out=True)
    rng = np.random.default_rng(0)
    shuffled = [" ".join(rng.permutation(text.split())) for text in texts]
    pairs = [[f" {one}", f" {other}"] for one, other in zip(texts, shuffled, strict=True)]
    scores = clbench.likelihood(model, tokenizer, ["It says:"] * len(texts), pairs)
    assert (scores[:, 0] > scores[:, 1]).mean() > 0.9


def test_its_card_tells_how_it_was_made() -> None:
    card = (Path(FOLDER) / "README.md").read_text(encoding="utf-8")
    for words in ("WikiText", "tools.pretrain_tiny", "next-token loss", "Apache-2.0", "epochs"):
        assert words in card
