"""Every family through the real loading path: pooling, groups, trimming, heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import CHECKPOINTS, OWN, make_checkpoint
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from clbench.models.classifier import Classifier
from clbench.models.encoding import encode, vocabulary_of
from clbench.models.families import FAMILIES
from clbench.models.groups import lr_groups
from clbench.models.load import build_classifier, load_backbone, load_tokenizer
from clbench.tasks.task import Rows

TEXTS = ["the film was very good and bright", "bad", "a dull story of the plot"]
PAIRS = Rows.of(TEXTS, ["good", "the plot was not bad", "bright"], [0, 1, 0])
Get = Callable[[str], Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Get:
    """A checkpoint of a kind, made on first use."""
    root = tmp_path_factory.mktemp("checkpoints")

    def get(kind: str) -> Path:
        return root / kind if (root / kind).exists() else make_checkpoint(kind, root / kind)

    return get


def build(folder: Path, **settings: object) -> Classifier:
    settings = {"heads": {"a": 2, "b": 3}, "head_seed": lambda name: ord(name), **settings}
    return build_classifier(str(folder), **settings).eval()  # type: ignore[arg-type]


def batch(folder: Path, at: list[int], vocabulary: np.ndarray | None = None) -> dict[str, Tensor]:
    tokenizer = load_tokenizer(str(folder))
    encoded = encode(PAIRS, tokenizer, 32)
    pad = int(tokenizer.pad_token_id)
    if vocabulary is not None:
        encoded, pad = encoded.remap(vocabulary), int(np.searchsorted(vocabulary, pad))
    return encoded.collate(at, pad)[0]


def small_vocabulary(folder: Path) -> np.ndarray:
    tokenizer = load_tokenizer(str(folder))
    return vocabulary_of([encode(PAIRS, tokenizer, 32)], tokenizer.all_special_ids, 60)


@pytest.mark.parametrize("kind", OWN)
def test_named_families_have_a_record(kind: str) -> None:
    assert kind in FAMILIES


@pytest.mark.parametrize("pooling", ["auto", "first", "last", "mean"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
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
    blind = pooling == "first" and model.family.pooling == "last"  # a decoder's first token
    assert blind or (together[0] - together[1]).abs().max() > 0.01


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_auto_pooling_takes_the_token_that_has_seen_the_row(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    inputs = batch(checkpoint(kind), [0, 1])
    lengths = inputs["attention_mask"].sum(1)
    assert lengths[0] != lengths[1], "padding is part of the case"
    arguments = {"attention_mask": inputs["attention_mask"], "input_ids": inputs["input_ids"]}
    if "token_type_ids" in inputs:
        arguments["token_type_ids"] = inputs["token_type_ids"]
    with torch.no_grad():
        hidden = model.backbone(**arguments).last_hidden_state
        features = model.features(inputs)
    causal = kind in ("gpt2", "llama", "gpt_neox")
    assert model.family.pooling == ("last" if causal else "first")
    at = lengths - 1 if causal else torch.zeros(2, dtype=torch.long)
    torch.testing.assert_close(features, hidden[torch.arange(2), at], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "albert", "electra"])
def test_segments_reach_models_that_have_them(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    inputs = batch(checkpoint(kind), [0])
    assert inputs["token_type_ids"].max() == 1
    other = {**inputs, "token_type_ids": 1 - inputs["token_type_ids"]}
    with torch.no_grad():
        assert (model.features(inputs) - model.features(other)).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "deberta-v2", "modernbert", "gpt2"])
def test_segments_are_kept_from_models_without(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    inputs = batch(checkpoint(kind), [0])
    assert "token_type_ids" not in inputs
    other = {**inputs, "token_type_ids": torch.ones_like(inputs["input_ids"])}
    with torch.no_grad():
        assert torch.equal(model.features(inputs), model.features(other))


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_layer_groups_hold_every_parameter_once(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    groups = model.layer_groups()
    names = [name for group in groups for name in group.parameters]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    depth = 2 if kind == "albert" else 3  # ALBERT: two groups of layers share their weights
    assert [group.name for group in groups] == [
        "embeddings",
        *(f"layer.{i}" for i in range(depth)),
        "head",
    ]
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
def test_what_is_neither_layer_nor_table_has_its_group(
    kind: str, embeddings: str, head: str | None, checkpoint: Get
) -> None:
    groups = build(checkpoint(kind)).layer_groups()
    assert f"backbone.{embeddings}" in groups[0].parameters
    assert head is None or f"backbone.{head}" in groups[-1].parameters


def test_the_convolution_of_deberta_belongs_to_its_first_layer(checkpoint: Get) -> None:
    groups = build(checkpoint("deberta-v2")).layer_groups()
    assert "backbone.encoder.conv.conv.weight" in groups[1].parameters


def test_layers_kept_in_several_lists_are_put_together(checkpoint: Get) -> None:
    groups = build(checkpoint("xlm")).layer_groups()
    for part in ("attentions", "ffns", "layer_norm1", "layer_norm2"):
        for layer in range(3):
            inside = [p for p in groups[layer + 1].parameters if f"{part}.{layer}." in p]
            assert inside


def gradients(model: Classifier, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    logits = model(inputs, "b")
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 2, 1])).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), found


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_trimmed_table_gives_the_same_numbers(kind: str, checkpoint: Get) -> None:
    folder = checkpoint(kind)
    vocabulary = small_vocabulary(folder)
    assert len(vocabulary) < 25
    whole, cut = build(folder), build(folder, vocabulary=vocabulary)
    assert cut.backbone.get_input_embeddings().weight.shape[0] == len(vocabulary)
    assert torch.equal(cut.vocabulary, torch.from_numpy(vocabulary))
    expected, full = gradients(whole, batch(folder, [0, 1, 2]))
    logits, small = gradients(cut, batch(folder, [0, 1, 2], vocabulary))
    assert torch.equal(logits, expected)
    assert small.keys() == full.keys()
    table = whole.backbone.get_input_embeddings().weight
    for name, parameter in whole.named_parameters():
        if parameter is table:
            others = np.setdiff1d(np.arange(60), vocabulary)
            assert not full[name][others].any(), "no gradient is lost with the rows"
            assert torch.equal(small[name], full[name][vocabulary])
            assert small[name].any()
        elif name in full:
            assert torch.equal(small[name], full[name]), name


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_trimming_keeps_the_padding_row(kind: str, checkpoint: Get) -> None:
    folder = checkpoint(kind)
    vocabulary = small_vocabulary(folder)
    before = build(folder).backbone.get_input_embeddings().padding_idx
    after = build(folder, vocabulary=vocabulary).backbone.get_input_embeddings().padding_idx
    assert after == (None if before is None else list(vocabulary).index(before))


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_positions_do_not_hang_on_the_number_of_the_padding_token(
    kind: str, checkpoint: Get
) -> None:
    """Token 0 is left out, so that padding moves to row 0 of the cut table."""
    folder = checkpoint(kind)
    tokenizer = load_tokenizer(str(folder))
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8], [9, 2, 1, 1]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    }
    vocabulary = np.array([1, 2, 5, 6, 7, 8, 9])
    moved = {
        **inputs,
        "input_ids": torch.from_numpy(np.searchsorted(vocabulary, inputs["input_ids"].numpy())),
    }
    assert tokenizer.pad_token_id == 1
    assert moved["input_ids"][1, 3] == 0
    with torch.no_grad():
        expected = build(folder).features(inputs)
        features = build(folder, vocabulary=vocabulary).features(moved)
    assert torch.equal(features, expected)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_embeddings_can_take_the_place_of_ids(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind))
    inputs = batch(checkpoint(kind), [0, 1, 2])
    with torch.no_grad():
        embedded = model.embed(inputs["input_ids"])
        assert embedded.shape[:2] == inputs["input_ids"].shape
        assert torch.equal(model(inputs, "a", embedded), model(inputs, "a"))
        assert not torch.equal(model(inputs, "a", embedded + 0.1), model(inputs, "a"))


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_heads_depend_on_their_seed_only(kind: str, checkpoint: Get) -> None:
    folder = checkpoint(kind)
    torch.manual_seed(1)
    one = build(folder, heads={"a": 2, "b": 3})
    state = torch.random.get_rng_state()
    two = build(folder, heads={"x": 5, "b": 3, "a": 2}, vocabulary=small_vocabulary(folder))
    assert torch.equal(torch.random.get_rng_state(), state), "torch's own stream is not touched"
    other = build(folder, head_seed=lambda name: 5)
    for name in ("a", "b"):
        assert torch.equal(one.head(name).weight, two.head(name).weight)
        assert not torch.equal(one.head(name).weight, other.head(name).weight)
        assert not one.head(name).bias.any()
    wide = build(folder, heads={"a": 400}).head("a").weight
    assert wide.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_random_backbone_is_the_same_cut_and_whole(kind: str, checkpoint: Get) -> None:
    folder = checkpoint(kind)
    vocabulary = small_vocabulary(folder)
    pretrained, whole, cut = build(folder), build(folder), build(folder, vocabulary=vocabulary)
    state = torch.random.get_rng_state()
    whole.randomise_backbone(3)
    cut.randomise_backbone(3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(whole.head("a").weight, pretrained.head("a").weight)
    with torch.no_grad():
        features = whole.features(batch(folder, [0, 1]))
        assert torch.equal(cut.features(batch(folder, [0, 1], vocabulary)), features)
    loaded = load_backbone(str(folder), random_seed=3)
    for (name, value), (_, fresh) in zip(
        whole.backbone.named_parameters(), loaded.named_parameters(), strict=True
    ):
        assert torch.equal(value, fresh), name
    whole.randomise_backbone(4)
    with torch.no_grad():
        assert not torch.equal(whole.features(batch(folder, [0, 1])), features)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_loaded_weights_are_float32_and_complete(kind: str, checkpoint: Get) -> None:
    backbone = load_backbone(str(checkpoint(kind)))
    assert not backbone.training
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    assert not [name for name, _ in backbone.named_parameters() if "pooler" in name]
    if kind not in ("deberta-v2", "mpnet", "xlm"):  # these bring an attention of their own
        assert backbone.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", OWN)
def test_rate_groups_of_a_plain_transformers_model(kind: str, checkpoint: Get) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(str(checkpoint(kind)))
    groups = lr_groups(model, [1e-5, 2e-5, 3e-5, 4e-5, 5e-5])
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
    names = {id(p): name for name, p in model.named_parameters()}
    first = {names[id(p)] for p in groups[0]["params"]}
    last = {names[id(p)] for p in groups[-1]["params"]}
    assert any("embed" in name or "wte" in name for name in first)
    assert any(name.startswith(("classifier", "score")) for name in last)
    assert [group["lr"] for group in groups][-1] == 5e-5
    torch.optim.Adam(groups).step()


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_bfloat16_autocast_trains(kind: str, checkpoint: Get) -> None:
    model = build(checkpoint(kind), vocabulary=small_vocabulary(checkpoint(kind))).train()
    inputs = batch(checkpoint(kind), [0, 1, 2], small_vocabulary(checkpoint(kind)))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(inputs, "b")
    logits.square().sum().backward()
    assert logits.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_heads_tell_close_targets_apart_under_autocast(checkpoint: Get) -> None:
    model = build_classifier(str(checkpoint("bert")), heads={"h": 1}, head_seed=lambda _: 0).eval()
    with torch.no_grad():
        model.head("h").bias.fill_(3.0)
    ids = torch.arange(5, 5 + 64).reshape(16, 4) % 20 + 5
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs = model(inputs, "h")
    assert outputs.dtype == torch.float32
    # In steps of 1/64, which is what bf16 has near 3, they would be one or two numbers.
    assert len(outputs.unique()) > 4
