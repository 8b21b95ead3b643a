from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import CHECKPOINTS, make_checkpoint
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from clbench.errors import ModelError
from clbench.models.config import load_config
from clbench.models.families import usable_length
from clbench.models.load import build_classifier, load_backbone, load_tokenizer
from clbench.models.trim import trim_embeddings


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_every_row_has_tokens_and_padding(kind: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(make_checkpoint(kind, tmp_path)))
    assert tokenizer.padding_side == "right"
    assert tokenizer.pad_token_id is not None
    assert len(tokenizer("")["input_ids"]) >= 1
    short, long = tokenizer(["bad", "the film was good"], padding=True)["input_ids"]
    assert len(short) == len(long)
    assert short[-1] == tokenizer.pad_token_id
    assert len(tokenizer("the film " * 30, truncation=True, max_length=9)["input_ids"]) == 9


def test_gpt2_texts_are_marked_by_end_of_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(make_checkpoint("gpt2", tmp_path)))
    assert tokenizer.pad_token == "<|endoftext|>"
    numbers = tokenizer.get_vocab()
    end, film, bad = numbers["<|endoftext|>"], numbers["film"], numbers["bad"]
    assert tokenizer("film bad")["input_ids"] == [end, film, bad]
    assert tokenizer("film", "bad")["input_ids"] == [end, film, end, bad]


def test_albert_tells_the_texts_of_a_pair_apart(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(make_checkpoint("albert", tmp_path)))
    assert tokenizer("film", "bad")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_sentencepiece_free_tokenizers_know_their_words(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(make_checkpoint("deberta-v2", tmp_path)))
    ids = tokenizer("the film was good")["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.convert_ids_to_tokens(ids[1:3]) == ["▁the", "▁film"]


def test_neither_padding_nor_end(tmp_path: Path) -> None:
    folder = make_checkpoint("bert", tmp_path)
    plain = Tokenizer(models.WordLevel({"[UNK]": 0, "film": 1}, unk_token="[UNK]"))
    for path in folder.glob("tokenizer*"):
        path.unlink()
    PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]").save_pretrained(folder)
    with pytest.raises(ModelError, match=r"neither a padding nor an end token.*pad_token"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("kind", "length"),
    [("bert", 40), ("roberta", 38), ("mpnet", 38), ("gpt2", 40), ("deberta-v2", 40)],
)
def test_usable_length(kind: str, length: int, tmp_path: Path) -> None:
    folder = make_checkpoint(kind, tmp_path)
    assert usable_length(load_config(str(folder))) == length
    model = build_classifier(str(folder), heads={"a": 2}, head_seed=lambda name: 0).eval()
    tokenizer = load_tokenizer(str(folder))
    row = tokenizer("film " * 99, truncation=True, max_length=length, return_tensors="pt")
    assert row["input_ids"].shape == (1, length)
    assert model.features(row).isfinite().all()


@pytest.mark.parametrize("ids", [[], [3, 2], [2, 2], [[1]]])
def test_vocabularies_must_ascend(ids: list[int], tmp_path: Path) -> None:
    backbone = load_backbone(str(make_checkpoint("bert", tmp_path)))
    with pytest.raises(ValueError, match="ascending"):
        trim_embeddings(backbone, np.array(ids, dtype=np.int64))


def test_a_token_without_a_row(tmp_path: Path) -> None:
    backbone = load_backbone(str(make_checkpoint("bert", tmp_path)))
    with pytest.raises(ModelError, match="token 60 has no row in the model's table of 60"):
        trim_embeddings(backbone, np.array([0, 1, 60]))
