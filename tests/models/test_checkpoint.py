"""Configurations, tokenizers and weights loaded from checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import CHECKPOINTS, save_generator
from helpers.loading import edit, error_of
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

from clbench.models.checkpoint import (
    load_backbone,
    load_config,
    load_generator,
    load_language_model,
    load_tokenizer,
    random_model,
    read_weights,
)

Get = Callable[..., Path]
SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


@pytest.fixture
def folder(checkpoint: Get, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint(), tmp_path / "model"))


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_every_row_has_tokens_and_padding(kind: str, checkpoint: Get) -> None:
    tokenizer = load_tokenizer(str(checkpoint(kind)))
    assert tokenizer.padding_side == "right"
    assert len(tokenizer("")["input_ids"]) >= 1
    short, long = tokenizer(["bad", "the film was good"], padding=True)["input_ids"]
    assert len(short) == len(long)
    assert short[-1] == tokenizer.pad_token_id
    assert len(tokenizer("the film " * 30, truncation=True, max_length=9)["input_ids"]) == 9


def test_gpt2_texts_are_marked_by_end_of_text(checkpoint: Get) -> None:
    tokenizer = load_tokenizer(str(checkpoint("gpt2")))
    assert tokenizer.pad_token == "<|endoftext|>"
    numbers = tokenizer.get_vocab()
    end, film, bad = numbers["<|endoftext|>"], numbers["film"], numbers["bad"]
    assert tokenizer("film bad")["input_ids"] == [end, film, bad]
    assert tokenizer("film", "bad")["input_ids"] == [end, film, end, bad]


def test_albert_gets_segments(checkpoint: Get) -> None:
    tokenizer = load_tokenizer(str(checkpoint("albert")))
    assert tokenizer("film", "bad")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_unigram_tokenizers_keep_whole_words(checkpoint: Get) -> None:
    tokenizer = load_tokenizer(str(checkpoint("deberta-v2")))
    ids = tokenizer("the film was good")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids[1:3]) == ["▁the", "▁film"]


@pytest.mark.parametrize(
    ("vocabulary", "special", "text"),
    [
        (["[UNK]", "film"], {"unk_token": "[UNK]"}, "neither a padding nor an end token"),
        (["[PAD]", "film"], {"pad_token": "[PAD]"}, "cannot read every text"),  # no unknown word
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(
    folder: Path, vocabulary: list[str], special: dict[str, str], text: str
) -> None:
    words = {word: number for number, word in enumerate(vocabulary)}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    for path in folder.glob("tokenizer*"):
        path.unlink()
    PreTrainedTokenizerFast(tokenizer_object=plain, **special).save_pretrained(folder)
    assert text in error_of(load_tokenizer, folder)


def test_an_added_token_beyond_the_weights_is_refused(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"new{number}" for number in range(60)])
    tokenizer.save_pretrained(folder)
    assert "token number 80, but its weights stop at 59" in error_of(load_tokenizer, folder)


def test_the_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    edit(folder, vocab_size=10)
    text = error_of(load_tokenizer, folder)
    assert "token number 20" in text
    assert "stop at 9" in text


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_loaded_weights_are_float32_and_complete(kind: str, checkpoint: Get) -> None:
    backbone = load_backbone(str(checkpoint(kind)))
    assert not backbone.training
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    assert not [name for name, _ in backbone.named_parameters() if "pooler" in name]
    if kind not in ("deberta-v2", "mpnet", "xlm"):  # these bring their own attention
        assert backbone.config._attn_implementation == "sdpa"


def test_half_precision_weights_become_float32(folder: Path) -> None:
    change_weights(folder, lambda w: w.update({name: value.half() for name, value in w.items()}))
    edit(folder, dtype="float16")
    for backbone in (load_backbone(str(folder)), random_model(load_config(str(folder)), 1)):
        assert {p.dtype for p in backbone.parameters()} == {torch.float32}


def test_a_checkpoint_with_a_head_gives_its_backbone(tmp_path: Path) -> None:
    model = BertForMaskedLM(BertConfig(vocab_size=20, max_position_embeddings=8, **SMALL))
    model.save_pretrained(tmp_path)
    weights = load_backbone(str(tmp_path)).state_dict()
    for name, value in model.bert.state_dict().items():
        assert torch.equal(weights[name], value)


def test_weights_under_another_prefix_are_not_replaced_by_random_ones(folder: Path) -> None:
    def rename(weights: dict[str, Any]) -> None:
        for name in list(weights):
            weights[f"network.{name}"] = weights.pop(name)

    change_weights(folder, rename)
    text = error_of(load_backbone, folder)
    assert "BertModel" in text
    assert "embeddings.LayerNorm.bias" in text


def test_one_missing_tensor_is_an_error(folder: Path) -> None:
    change_weights(folder, lambda w: w.pop("encoder.layer.1.output.dense.bias"))
    assert "lack 1 of the tensors" in error_of(load_backbone, folder)


@pytest.mark.parametrize(("kind", "key"), [("bert", "num_hidden_layers"), ("gpt2", "n_layer")])
def test_more_layers_than_the_configuration_has_are_an_error(
    kind: str, key: str, checkpoint: Get, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint(kind), tmp_path / kind))
    edit(folder, **{key: 2})
    assert "with this config.json has no place for" in error_of(load_backbone, folder)


def test_heads_poolers_and_old_buffers_are_left_out(folder: Path) -> None:
    extra = {
        "embeddings.position_ids": torch.arange(40)[None],
        "pooler.dense.weight": torch.zeros(32, 32),
        "cls.predictions.bias": torch.zeros(60),
    }
    change_weights(folder, lambda w: w.update(extra))
    load_backbone(str(folder))
    unknown = "encoder.layer.0.attention.self.distance_embedding.weight"
    change_weights(folder, lambda w: w.update({unknown: torch.zeros(79, 16)}))
    assert unknown in error_of(load_backbone, folder)


@pytest.mark.parametrize("name", ["encoder.layer.0.output.dense.weight", "pooler.dense.bias"])
def test_weights_that_are_whole_numbers_are_an_error(name: str, folder: Path) -> None:
    change_weights(folder, lambda w: w.update({name: torch.zeros(32, 48, dtype=torch.int8)}))
    text = error_of(load_backbone, folder)
    assert f"{name!r} in {folder / 'model.safetensors'} is stored as I8, as in quantised" in text


def test_masks_and_positions_are_whole_numbers(checkpoint: Get, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("gpt2"), tmp_path / "gpt2"))
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool)
    change_weights(folder, lambda w: w.update({"h.0.attn.bias": mask}))
    assert load_backbone(str(folder)).config.model_type == "gpt2"


def test_a_pooler_that_the_head_reads_must_be_there(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=20, max_position_embeddings=8, **SMALL)
    BertForSequenceClassification(config).save_pretrained(tmp_path)

    def read(name: str) -> Any:
        return read_weights(BertForSequenceClassification, config, tmp_path, name)

    assert read(str(tmp_path))
    change_weights(tmp_path, lambda w: w.pop("bert.pooler.dense.weight"))
    assert "lack 1 of the tensors of BertForSequenceClassification" in error_of(read, tmp_path)
    assert load_backbone(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["v_head.weight", "lm_head.bias", "model.layers.0.self_attn.q_proj.bias"]
)
def test_a_language_model_has_no_other_weights(name: str, tmp_path: Path) -> None:
    save_generator("llama-untied", tmp_path)
    assert load_generator(str(tmp_path))
    change_weights(tmp_path, lambda w: w.update({name: torch.zeros(3)}))
    for load in (load_generator, load_language_model):
        assert f"no place for 1 of its weights, such as {name!r}" in error_of(load, tmp_path)


def test_a_language_model_of_an_encoder_may_have_heads_of_other_kinds(folder: Path) -> None:
    other = {"cls.seq_relationship.weight": torch.zeros(2, 32), "classifier.bias": torch.zeros(2)}
    change_weights(folder, lambda w: w.update(other))
    assert load_language_model(str(folder)).loss == "mlm"


def test_weights_of_another_shape_are_an_error(folder: Path) -> None:
    edit(folder, intermediate_size=64)
    assert error_of(load_backbone, folder) == (
        f"model {str(folder)!r}: 'encoder.layer.0.intermediate.dense.bias' in {folder} has the "
        "shape (48,), but config.json asks for (64,). Fetch or save the model again."
    )


def test_weights_that_are_not_finite_are_an_error(folder: Path) -> None:
    name = "encoder.layer.1.attention.self.query.weight"
    change_weights(folder, lambda w: w[name][0, :2].fill_(torch.nan))
    text = error_of(load_backbone, folder)
    assert f"{name!r} in {folder} holds infinite numbers or NaN" in text


def test_options_that_change_no_result_are_reset(folder: Path) -> None:
    inputs = {"input_ids": torch.tensor([[2, 5, 6, 7, 3]])}
    whole = load_backbone(str(folder))(**inputs).last_hidden_state
    edit(folder, return_dict=False, chunk_size_feed_forward=3)
    assert torch.equal(load_backbone(str(folder))(**inputs).last_hidden_state, whole)


def test_encoder_decoders_are_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5Model(config).save_pretrained(tmp_path)
    assert "models of type 't5' have both an encoder and a decoder" in error_of(
        load_backbone, tmp_path
    )


def test_image_models_are_refused(tmp_path: Path) -> None:
    ViTModel(ViTConfig(image_size=8, patch_size=4, **SMALL)).save_pretrained(tmp_path)
    assert "Use a text model" in error_of(load_backbone, tmp_path)


def test_a_missing_language_model_head_is_drawn_from_its_seed(checkpoint: Get) -> None:
    one, two, other = (load_language_model(str(checkpoint()), head_seed=s) for s in (0, 0, 1))
    assert one.loss == "mlm"
    name = "cls.predictions.transform.dense.weight"
    assert name in one.missing
    heads = [dict(m.model.named_parameters())[name] for m in (one, two, other)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    backbone = load_backbone(str(checkpoint())).state_dict()
    weights = one.model.state_dict()
    names = one.backbone_names()
    assert all(torch.equal(weights[here], backbone[there]) for here, there in names.items())
    assert load_language_model(str(checkpoint("gpt2"))).loss == "clm"


def test_a_language_model_without_part_of_its_backbone_is_refused(folder: Path) -> None:
    change_weights(folder, lambda w: w.pop("encoder.layer.1.output.dense.bias"))
    assert "lack 1 of the tensors of BertForMaskedLM" in error_of(load_language_model, folder)
