"""Tokenised rows and trimmed tables; batches are tested with the training data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import CHECKPOINTS
from helpers.loading import ROWS, encoded
from torch import Tensor
from transformers import BertJapaneseTokenizer

from clbench.models.checkpoint import load_tokenizer
from clbench.models.classifier import Classifier, build_classifier
from clbench.models.encoding import encode, tokenizer_digest
from clbench.tasks.task import Rows

Get = Callable[..., Path]


def classifier(folder: Path, vocabulary: np.ndarray | None = None) -> Classifier:
    return build_classifier(
        str(folder), heads={"a": 3}, head_seed=lambda name: 0, vocabulary=vocabulary
    ).eval()


def test_rows_equal_the_tokenizers_output_and_are_cached(
    checkpoint: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path))
    tokenizer = load_tokenizer(str(checkpoint()))
    rows = encode(ROWS, tokenizer, 9, cache=True)
    for i, (first, second) in enumerate(zip(ROWS.first, ROWS.second or (), strict=True)):
        expected = tokenizer(first, second, truncation=True, max_length=9)
        part = slice(rows.offsets[i], rows.offsets[i + 1])
        assert rows.ids[part].tolist() == expected["input_ids"]
        assert rows.types is not None
        assert rows.types[part].tolist() == expected["token_type_ids"]
    monkeypatch.setattr(type(tokenizer), "__call__", lambda *_, **__: pytest.fail("tokenised"))
    again = encode(ROWS, tokenizer, 9, cache=True)
    assert np.array_equal(again.ids, rows.ids)
    monkeypatch.undo()
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path))
    next(tmp_path.glob("tokens/*")).write_bytes(b"damaged")
    assert np.array_equal(encode(ROWS, tokenizer, 9, cache=True).ids, rows.ids)


def test_no_rows_can_be_encoded(checkpoint: Get) -> None:
    rows = encode(Rows.of([], None, []), load_tokenizer(str(checkpoint())), 9)
    assert (len(rows), len(rows.ids), rows.types) == (0, 0, None)


def gradients(model: Classifier, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    logits = model(inputs, "a")
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 2, 1])).backward()
    return logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_rows_of_a_slow_tokenizer_are_cached_by_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path / "cache"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "Film"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    rows, tokens, digests = Rows.of(["Film"], None, [0]), [], []
    for number, lower in enumerate((True, False, False)):
        tokenizer = BertJapaneseTokenizer(
            str(tmp_path / "vocab.txt"), word_tokenizer_type="basic", do_lower_case=lower
        )
        tokenizer.save_pretrained(tmp_path / str(number))
        tokenizer = BertJapaneseTokenizer.from_pretrained(tmp_path / str(number))
        tokens.append(encode(rows, tokenizer, 9, cache=True).ids.tolist())
        digests.append(tokenizer_digest(tokenizer))
    assert tokens == [[2, 5, 3], [2, 6, 3], [2, 6, 3]]
    assert digests[0] != digests[1] == digests[2]


def test_the_files_of_a_slow_tokenizer_are_part_of_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "spiece.model"
    digests = []
    for content in (b"one", b"other"):
        file.write_bytes(content)
        slow: Any = SimpleNamespace(
            init_kwargs={"spm_file": str(file), "name_or_path": str(tmp_path)},
            vocab_files_names={"spm_file": "spiece.model"},
            get_vocab=dict,
            model_input_names=["input_ids"],
            truncation_side="right",
        )
        digests.append(tokenizer_digest(slow))
    assert digests[0] != digests[1]


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_trimmed_table_gives_the_same_numbers(kind: str, checkpoint: Get) -> None:
    rows, pad, vocabulary = encoded(checkpoint(kind))
    assert len(vocabulary) < 25
    whole = classifier(checkpoint(kind))
    trimmed = classifier(checkpoint(kind), vocabulary)
    table = whole.backbone.get_input_embeddings()
    small_table = trimmed.backbone.get_input_embeddings()
    assert small_table.weight.shape[0] == len(vocabulary)
    padding = None if table.padding_idx is None else list(vocabulary).index(table.padding_idx)
    assert small_table.padding_idx == padding
    assert torch.equal(trimmed.vocabulary, torch.from_numpy(vocabulary))
    inputs, _ = rows.collate([0, 1, 2], pad)
    remapped, _ = rows.remap(vocabulary).collate([0, 1, 2], np.searchsorted(vocabulary, pad))
    expected, full = gradients(whole, inputs)
    logits, small = gradients(trimmed, remapped)
    assert torch.equal(logits, expected)
    assert small.keys() == full.keys()
    for name, parameter in whole.named_parameters():
        if parameter is table.weight:
            others = np.setdiff1d(np.arange(60), vocabulary)
            assert not full[name][others].any(), "no gradient is lost with the rows"
            assert torch.equal(small[name], full[name][vocabulary])
            assert small[name].any()
        elif name in full:
            assert torch.equal(small[name], full[name]), name


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_positions_do_not_depend_on_the_padding_tokens_number(kind: str, checkpoint: Get) -> None:
    """Token 0 is left out, so that padding moves to row 0 of the trimmed table."""
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8], [9, 2, 1, 1]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    }
    vocabulary = np.array([1, 2, 5, 6, 7, 8, 9])
    ids = torch.from_numpy(np.searchsorted(vocabulary, inputs["input_ids"].numpy()))
    assert load_tokenizer(str(checkpoint(kind))).pad_token_id == 1
    assert ids[1, 3] == 0
    with torch.no_grad():
        expected = classifier(checkpoint(kind)).features(inputs)
        features = classifier(checkpoint(kind), vocabulary).features({**inputs, "input_ids": ids})
    assert torch.equal(features, expected)
