"""The layers, embeddings and longest row of each architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from helpers.checkpoints import CHECKPOINTS

from clbench.models.checkpoint import load_config, load_tokenizer
from clbench.models.classifier import Classifier, build_classifier
from clbench.models.families import family_of_whole, usable_length
from clbench.models.groups import layer_groups_of

Get = Callable[..., Path]


def build(folder: Path) -> Classifier:
    return build_classifier(
        str(folder), heads={"a": 2, "b": 3}, head_seed=lambda name: ord(name)
    ).eval()


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_layer_groups_hold_every_parameter_once(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    groups = model.layer_groups()
    names = [name for group in groups for name in group.parameters]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    depth = 2 if kind == "albert" else 3  # ALBERT: two groups of layers share their weights
    expected = ["embeddings", *(f"layer.{i}" for i in range(depth)), "head"]
    assert [group.name for group in groups] == expected
    assert all(group.parameters for group in groups)
    weight = model.backbone.get_input_embeddings().weight
    table = next(name for name, value in model.named_parameters() if value is weight)
    assert table in groups[0].parameters
    assert {"heads.a.weight", "heads.b.bias"} <= set(groups[-1].parameters)


@pytest.mark.parametrize(
    ("kind", "embeddings", "head"),
    [
        ("electra", "embeddings_project.weight", None),
        ("albert", "encoder.embedding_hidden_mapping_in.bias", None),
        ("deberta-v2", "encoder.rel_embeddings.weight", None),
        ("deberta-v2", "encoder.LayerNorm.weight", None),
        ("modernbert", "embeddings.norm.weight", "final_norm.weight"),
        ("gpt2", "wpe.weight", "ln_f.bias"),
        ("llama", "embed_tokens.weight", "norm.weight"),
        ("mpnet", "encoder.relative_attention_bias.weight", None),
        ("xlm", "position_embeddings.weight", "layer_norm_emb.weight"),
    ],
)
def test_parameters_outside_the_layers_have_a_group(
    kind: str, embeddings: str, head: str | None, checkpoint: Get
) -> None:
    groups = build(checkpoint(kind)).layer_groups()
    assert f"backbone.{embeddings}" in groups[0].parameters
    assert head is None or f"backbone.{head}" in groups[-1].parameters


@pytest.mark.parametrize("kind", ["bart", "mbart", "pegasus", "t5"])
def test_both_sides_of_an_encoder_decoder_have_embeddings(kind: str) -> None:
    size: dict[str, int] = {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_layers": 2}
    size |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_layers": 2}
    if kind == "t5":
        size = {"d_ff": 8, "d_kv": 4, "num_layers": 2, "num_heads": 2}
    config = transformers.AutoConfig.for_model(kind, vocab_size=40, d_model=8, **size)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    groups = {g.name: g.parameters for g in layer_groups_of(model, family_of_whole(model), "")}
    assert [*groups] == ["embeddings", "layer.0", "layer.1", "head"]
    tables = ["shared", "embed_positions", "layernorm_embedding"]
    expected = [
        name
        for name, _ in model.named_parameters()
        if any(part in tables for part in name.split("."))
    ]
    assert list(groups["embeddings"]) == expected
    assert {name.split(".")[-2] for name in groups["head"]} <= {"layer_norm", "final_layer_norm"}


def test_the_convolution_of_deberta_belongs_to_its_first_layer(checkpoint: Get) -> None:
    groups = build(checkpoint("deberta-v2")).layer_groups()
    assert "backbone.encoder.conv.conv.weight" in groups[1].parameters


def test_layers_in_several_lists_are_put_together(checkpoint: Get) -> None:
    groups = build(checkpoint("xlm")).layer_groups()
    for part in ("attentions", "ffns", "layer_norm1", "layer_norm2"):
        for layer in range(3):
            assert any(f"{part}.{layer}." in name for name in groups[layer + 1].parameters)


@pytest.mark.parametrize(
    ("kind", "length"), [("bert", 40), ("roberta", 38), ("mpnet", 38), ("gpt2", 40)]
)
def test_rows_of_the_usable_length_fit_the_position_table(
    kind: str, length: int, checkpoint: Get
) -> None:
    folder = str(checkpoint(kind))
    assert usable_length(load_config(folder)) == length
    row = load_tokenizer(folder)(
        "film " * 99, truncation=True, max_length=length, return_tensors="pt"
    )
    assert row["input_ids"].shape == (1, length)
    assert build(Path(folder)).features(row).isfinite().all()


@pytest.mark.parametrize("kind", ["ibert", "lilt", "luke", "markuplm", "xmod"])
def test_positions_that_start_after_the_padding_number_are_not_usable(kind: str) -> None:
    sizes = {"hidden_size": 24, "intermediate_size": 8, "vocab_size": 40, "num_hidden_layers": 1}
    if kind == "luke":
        sizes |= {"entity_vocab_size": 5, "entity_emb_size": 8}
    config = transformers.AutoConfig.for_model(
        kind, num_attention_heads=2, max_position_embeddings=34, pad_token_id=1, **sizes
    )
    model = transformers.AutoModel.from_config(config).eval()
    if kind == "xmod":
        model.set_default_language(config.languages[0])
    assert usable_length(config) == 32
    assert model(torch.full((1, 32), 5)).last_hidden_state.isfinite().all()
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        model(torch.full((1, 33), 5))
