"""The built-in model is small, loads without a network, and has learned something."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

import clbench.models

TINY = Path(clbench.models.__file__).parent / "tiny"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test on any attempt to open a connection."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_it_is_small_and_complete() -> None:
    names = {path.name for path in TINY.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert (TINY / "model.safetensors").stat().st_size <= 8_000_000
    assert json.loads((TINY / "config.json").read_text())["num_hidden_layers"] >= 4


def test_transformers_classes_load_all_of_it() -> None:
    from transformers import AutoModel, AutoModelForMaskedLM

    model, report = AutoModelForMaskedLM.from_pretrained(TINY, output_loading_info=True)
    assert not report["missing_keys"]
    assert next(model.parameters()).dtype == torch.float32
    decoder, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert decoder.data_ptr() == table.data_ptr()
    encoder, report = AutoModel.from_pretrained(TINY, output_loading_info=True)
    assert not report["missing_keys"]
    assert encoder.pooler is not None


def test_the_tokenizer_is_uncased_and_builds_pairs() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    assert tokenizer("The Soup")["input_ids"] == tokenizer("the soup")["input_ids"]
    pair = tokenizer("The soup was good.", "The soup was bad.")
    assert set(pair["token_type_ids"]) == {0, 1}
    assert tokenizer.convert_ids_to_tokens(pair["input_ids"])[0] == "[CLS]"
    assert tokenizer.model_max_length == 256
    assert tokenizer.mask_token == "[MASK]"


def test_it_fills_masks_much_better_than_chance() -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModelForMaskedLM.from_pretrained(TINY).eval()
    cases = {
        "He was born in the [MASK] of London.": "city",
        "She is one of [MASK] best actors.": "the",
        "They went to the store and bought [MASK] bread.": "some",
        "The film was [MASK] by a young director.": "made",
        "In 1998, he [MASK] a member of the team.": "was",
    }
    ranks = []
    for text, word in cases.items():
        batch = tokenizer(text, return_tensors="pt")
        at = batch["input_ids"][0] == tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(**batch).logits[0, at][0]
        ranks.append(int((logits > logits[tokenizer.convert_tokens_to_ids(word)]).sum()))
    assert sorted(ranks)[2] < 30, dict(zip(cases, ranks, strict=True))


def test_k_means_on_its_embeddings_separates_topics() -> None:
    from sklearn.cluster import KMeans
    from transformers import AutoModel, AutoTokenizer

    from clbench.tasks.synthetic import unlabelled
    from tools.synthetic.lexicon import TOPICS

    tokenizer, model = AutoTokenizer.from_pretrained(TINY), AutoModel.from_pretrained(TINY).eval()
    texts = unlabelled(100)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    weight = batch["attention_mask"][..., None]
    vectors = ((hidden * weight).sum(1) / weight.sum(1)).numpy()
    kitchen = TOPICS["kitchen"]
    words = (*kitchen.people, *kitchen.things, *kitchen.aspects)
    harbor = TOPICS["harbor"]
    other_words = (*harbor.people, *harbor.things, *harbor.aspects)
    score = [
        sum(f" {w}" in t.lower() for w in words) - sum(f" {w}" in t.lower() for w in other_words)
        for t in texts
    ]
    clear = [i for i, s in enumerate(score) if s]
    clusters = KMeans(2, n_init=10, random_state=0).fit_predict(vectors)
    agree = sum((clusters[i] == 1) == (score[i] > 0) for i in clear) / len(clear)
    assert max(agree, 1 - agree) > 0.8


def test_most_words_of_the_synthetic_tasks_are_one_token() -> None:
    from transformers import AutoTokenizer

    from clbench.tasks.synthetic import unlabelled

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    pieces = [p for text in unlabelled(500) for p in tokenizer.tokenize(text)]
    assert tokenizer.unk_token not in pieces
    assert sum(p.startswith("##") for p in pieces) / len(pieces) < 0.15
