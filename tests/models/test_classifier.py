"""Every architecture as a classifier: pooling, segments, heads, random backbones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.checkpoints import CHECKPOINTS
from helpers.loading import ROWS, encoded
from torch import Tensor

from clbench.core.errors import ModelError
from clbench.models.checkpoint import load_config, load_tokenizer, random_model
from clbench.models.classifier import (
    Classifier,
    build_classifier,
    first_token,
    head_key,
    last_token,
    mean_token,
)
from clbench.models.encoding import encode

Get = Callable[..., Path]
HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [8.0, 9.0]], [[5.0, 6.0], [7.0, 0.0], [2.0, 3.0]]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def build(folder: Path, **settings: Any) -> Classifier:
    settings = {"heads": {"a": 2, "b": 3}, "head_seed": lambda name: ord(name), **settings}
    return build_classifier(str(folder), **settings).eval()


def batch(folder: Path, at: list[int]) -> dict[str, Tensor]:
    tokenizer = load_tokenizer(str(folder))
    return encode(ROWS, tokenizer, 32).collate(at, int(tokenizer.pad_token_id))[0]


@pytest.mark.parametrize(
    ("pool", "masked", "unmasked"),
    [
        (first_token, [[1.0, 2.0], [5.0, 6.0]], [1.0, 2.0]),
        (last_token, [[3.0, 4.0], [2.0, 3.0]], [8.0, 9.0]),
        (mean_token, [[2.0, 3.0], [14.0 / 3.0, 3.0]], [4.0, 5.0]),
    ],
)
def test_pooling_of_two_rows(pool: Any, masked: list[Any], unmasked: list[float]) -> None:
    torch.testing.assert_close(pool(HIDDEN, MASK), torch.tensor(masked))
    torch.testing.assert_close(pool(HIDDEN, None)[0], torch.tensor(unmasked))


def test_heads_fit_hidden_states_that_the_backbone_projects() -> None:
    config = transformers.OPTConfig(
        vocab_size=60, hidden_size=32, word_embed_proj_dim=16, ffn_dim=48, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=40,
    )  # fmt: skip
    model = Classifier(transformers.OPTModel(config), {"a": 2}, head_seed=lambda name: 0)
    inputs = {"input_ids": torch.tensor([[3, 4]]), "attention_mask": torch.ones(1, 2).long()}
    assert model(inputs, "a").shape == (1, 2)


def test_the_mean_is_summed_in_float32() -> None:
    hidden = torch.full((1, 1000, 1), 1.0, dtype=torch.bfloat16)
    hidden[0, 0] = 257.0  # rounds to 256 in bfloat16
    assert mean_token(hidden, torch.ones(1, 1000)).item() == pytest.approx(1.255)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [*((kind, "auto") for kind in CHECKPOINTS), ("bert", "mean"), ("bert", "last")],
)
def test_a_row_has_the_same_features_alone_and_padded(
    kind: str, pooling: str, checkpoint: Get
) -> None:
    model = build(checkpoint(kind), pooling=pooling)
    with torch.no_grad():
        together = model.features(batch(checkpoint(kind), [0, 1, 2]))
        for row in range(3):
            alone = model.features(batch(checkpoint(kind), [row]))
            torch.testing.assert_close(together[row : row + 1], alone, atol=2e-5, rtol=1e-4)
    assert together.shape == (3, 32)
    assert (together[0] - together[1]).abs().max() > 0.01


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_auto_pooling_takes_the_token_that_has_seen_the_row(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    inputs = batch(checkpoint(kind), [0, 1])
    lengths = inputs["attention_mask"].sum(1)
    assert lengths[0] != lengths[1], "padding is part of the case"
    with torch.no_grad():
        hidden = model.backbone(**inputs).last_hidden_state
        features = model.features(inputs)
    causal = kind in ("gpt2", "llama", "gpt_neox")
    assert model.family.pooling == ("last" if causal else "first")
    at = lengths - 1 if causal else torch.zeros(2, dtype=torch.long)
    torch.testing.assert_close(features, hidden[torch.arange(2), at], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "albert"])
def test_segments_reach_models_that_have_them(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    inputs = batch(checkpoint(kind), [0])
    assert inputs["token_type_ids"].max() == 1
    other = {**inputs, "token_type_ids": 1 - inputs["token_type_ids"]}
    with torch.no_grad():
        assert (model.features(inputs) - model.features(other)).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "deberta-v2", "modernbert", "gpt2"])
def test_models_without_segments_get_none(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    inputs = batch(checkpoint(kind), [0])
    assert "token_type_ids" not in inputs
    other = {**inputs, "token_type_ids": torch.ones_like(inputs["input_ids"])}
    with torch.no_grad():
        assert torch.equal(model.features(inputs), model.features(other))


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_embeddings_can_take_the_place_of_ids(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    inputs = batch(checkpoint(kind), [0, 1, 2])
    with torch.no_grad():
        embedded = model.embed(inputs["input_ids"])
        assert embedded.shape[:2] == inputs["input_ids"].shape
        assert torch.equal(model(inputs, "a", embedded), model(inputs, "a"))
        assert not torch.equal(model(inputs, "a", embedded + 0.1), model(inputs, "a"))


def test_heads_depend_only_on_their_seed(checkpoint: Get) -> None:
    folder = checkpoint()
    torch.manual_seed(1)
    one = build(folder, heads={"a": 2, "b": 3})
    state = torch.random.get_rng_state()
    two = build(folder, heads={"x": 5, "b": 3, "a": 2}, vocabulary=encoded(folder)[2])
    assert torch.equal(torch.random.get_rng_state(), state), "torch's own stream is not touched"
    other = build(folder, head_seed=lambda name: 5)
    for name in ("a", "b"):
        assert torch.equal(one.head(name).weight, two.head(name).weight)
        assert not torch.equal(one.head(name).weight, other.head(name).weight)
        assert not one.head(name).bias.any()
    wide = build(folder, heads={"a": 400}).head("a").weight
    assert wide.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_random_backbone_is_the_same_trimmed_and_whole(kind: str, checkpoint: Get) -> None:
    folder = checkpoint(kind)
    rows, pad, vocabulary = encoded(folder)
    inputs, _ = rows.collate([0, 1], pad)
    remapped, _ = rows.remap(vocabulary).collate([0, 1], np.searchsorted(vocabulary, pad))
    whole, trimmed = build(folder), build(folder, vocabulary=vocabulary)
    head = whole.head("a").weight.clone()
    state = torch.random.get_rng_state()
    whole.randomise_backbone(3)
    trimmed.randomise_backbone(3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(whole.head("a").weight, head)
    with torch.no_grad():
        features = whole.features(inputs)
        assert torch.equal(trimmed.features(remapped), features)
    loaded = dict(random_model(load_config(str(folder)), 3).named_parameters())
    for name, value in whole.backbone.named_parameters():
        assert torch.equal(value, loaded[name]), name
    whole.randomise_backbone(4)
    with torch.no_grad():
        assert not torch.equal(whole.features(inputs), features)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_bfloat16_autocast_trains(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind)).train()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch(checkpoint(kind), [0, 1, 2]), "b")
    logits.square().sum().backward()
    assert logits.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_heads_compute_in_float32_under_autocast(checkpoint: Get) -> None:
    model = build(checkpoint(), heads={"h": 1}, head_seed=lambda _: 0)
    ids = torch.arange(5, 5 + 64).reshape(16, 4) % 20 + 5
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model.head("h").bias.fill_(3.0)
        outputs = model(inputs, "h")
    assert outputs.dtype == torch.float32
    # In steps of 1/64, which is what bfloat16 has near 3, they would be one or two numbers.
    assert len(outputs.unique()) > 4


@pytest.mark.parametrize("name", ["glue/sst2", "own.csv", "keys", "training", "", "a b"])
def test_any_task_name_can_name_a_head(name: str, checkpoint: Get) -> None:
    model = build(checkpoint(), heads={name: 3}, head_seed=lambda name: 1)
    assert model.head(name).weight.shape == (3, 32)
    names = [f"heads.{head_key(name)}.{part}" for part in ("weight", "bias")]
    assert model.head_parameter_names(name) == names
    assert set(names) <= dict(model.named_parameters()).keys()
    assert model(batch(checkpoint(), [0]), name).shape == (1, 3)


def test_an_unknown_head_names_the_nearest(checkpoint: Get) -> None:
    model = build(checkpoint(), heads={"glue/sst2": 2}, head_seed=lambda name: 1)
    with pytest.raises(ModelError, match="Did you mean 'glue/sst2'"):
        model.head("glue/sst")


def test_head_dropout_acts_in_training_only(checkpoint: Get) -> None:
    model = build(checkpoint(), head_dropout=0.5)
    inputs = batch(checkpoint(), [0])
    still = model(inputs, "a")
    assert torch.equal(model(inputs, "a"), still)
    model.dropout.train()
    outputs = [model(inputs, "a") for _ in range(8)]
    assert not all(torch.equal(output, still) for output in outputs)


def test_backbone_parameters_have_their_full_names(checkpoint: Get) -> None:
    model = build(checkpoint(), heads={"a": 2})
    backbone = model.backbone_parameters()
    everything = dict(model.named_parameters())
    assert set(everything) - set(backbone) == {"heads.a.weight", "heads.a.bias"}
    assert all(everything[name] is value for name, value in backbone.items())
