from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import COMMON
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
)

from clbench.core.errors import ModelError
from clbench.models.classifier import build_classifier
from clbench.models.groups import depth_of, divide_layers, lr_groups, transfer_rates

Get = Callable[..., Path]
TEN = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
SHAPE: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
}


def bert(layers: int) -> BertConfig:
    return BertConfig(num_hidden_layers=layers, **SHAPE)


def rate_of_each(model: nn.Module, rates: list[float], **options: Any) -> dict[str, float]:
    groups = lr_groups(model, rates, **options)
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert len(rate) == len(list(model.parameters()))
    return {name: rate[id(p)] for name, p in model.named_parameters()}


def mean(*rates: float) -> float:
    return math.prod(rates) ** (1 / len(rates))


@pytest.mark.parametrize(
    ("depth", "division", "expected"),
    [
        (12, "code", [[0, 1], [2], [3, 4], [5], [6, 7], [8], [9, 10], [11]]),
        (12, "paper", [[0], [1, 2], [3], [4, 5], [6], [7, 8], [9], [10, 11]]),
        (24, "code", [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(8)]),
        (6, "code", [[0], [1], [2], [], [3], [4], [5], []]),
        (6, "paper", [[], [0], [1], [2], [], [3], [4], [5]]),
        (1, "code", [[0], [], [], [], [], [], [], []]),
    ],
)
def test_layers_are_divided_into_the_published_groups(
    depth: int, division: Any, expected: list[list[int]]
) -> None:
    assert divide_layers(depth, 8, division) == expected


@pytest.mark.parametrize("division", ["code", "paper"])
def test_every_layer_is_in_one_group(division: Any) -> None:
    for depth, parts in itertools.product(range(1, 50), range(1, 20)):
        groups = divide_layers(depth, parts, division)
        assert len(groups) == parts
        assert [layer for group in groups for layer in group] == list(range(depth))
        sizes = [len(group) for group in groups]
        assert max(sizes) - min(sizes) <= 1


def test_impossible_divisions_are_refused() -> None:
    for depth, parts in ((0, 8), (12, 0)):
        with pytest.raises(ValueError, match="cannot divide"):
            divide_layers(depth, parts)
    with pytest.raises(ValueError, match="'code' or 'paper'"):
        divide_layers(12, 8, "text")  # type: ignore[arg-type]


def test_twelve_layers_get_the_rates_of_their_groups() -> None:
    model = BertForSequenceClassification(bert(12))
    rates = [float(i) for i in range(10)]
    groups = lr_groups(model, rates)
    assert [group["group"] for group in groups] == list(range(10))
    names = ["embeddings", *(f"layers.{i}" for i in range(1, 9)), "head"]
    assert [group["name"] for group in groups] == names
    layer = "bert.encoder.layer.{}.output.dense.weight"
    rate = rate_of_each(model, rates)
    assert [rate[layer.format(i)] for i in range(12)] == [1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8]
    assert rate["bert.embeddings.word_embeddings.weight"] == 0
    assert rate["classifier.weight"] == 9
    assert rate["bert.pooler.dense.weight"] == 9
    rate = rate_of_each(model, rates, division="paper")
    assert [rate[layer.format(i)] for i in range(12)] == [1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8]


def test_an_optimizer_moves_each_depth_by_its_own_rate(checkpoint: Get) -> None:
    model = build_classifier(str(checkpoint()), heads={"a": 2}, head_seed=lambda name: 0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(lr_groups(model, [0.5, 1.0, 2.0, 3.0, 4.0]))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    expected = {"embeddings": 0.5, "layer.0": 1.0, "layer.1": 2.0, "layer.2": 3.0, "head": 4.0}
    after = dict(model.named_parameters())
    for group in model.layer_groups():
        for name in group.parameters:
            moved = before[name] - after[name].detach()
            torch.testing.assert_close(moved, torch.full_like(moved, expected[group.name]))


@pytest.mark.parametrize("kind", COMMON)
def test_a_transformers_model_is_grouped_whole(kind: str, checkpoint: Get) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(str(checkpoint(kind)))
    rate = rate_of_each(model, [1e-5, 2e-5, 3e-5, 4e-5, 5e-5])
    assert any(("embed" in name or "wte" in name) and r == 1e-5 for name, r in rate.items())
    assert any(name.startswith(("classifier", "score")) for name, r in rate.items() if r == 5e-5)
    assert depth_of(model) == (2 if kind == "albert" else 3)


def test_empty_groups_and_frozen_parameters_are_left_out() -> None:
    model = BertForSequenceClassification(bert(6))
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[0].requires_grad_(False)
    assert [group["group"] for group in lr_groups(model, [1e-5] * 10)] == [2, 3, 5, 6, 7, 9]


def test_tied_weights_are_in_one_group() -> None:
    model = BertForMaskedLM(bert(2))
    ids = [id(p) for group in lr_groups(model, [1.0, 2.0, 3.0]) for p in group["params"]]
    assert len(ids) == len(set(ids)) == len(list(model.parameters()))
    tied = id(model.cls.predictions.decoder.weight)
    assert tied in {id(p) for p in lr_groups(model, [1.0, 2.0, 3.0])[0]["params"]}


def test_a_backbone_without_a_head_can_be_grouped() -> None:
    names = [group["name"] for group in lr_groups(BertModel(bert(2)), [1.0, 2.0, 3.0])]
    assert names == ["embeddings", "layers.1", "head"]


def test_unusable_rates_are_refused() -> None:
    model = BertModel(bert(2))
    with pytest.raises(ValueError, match="at least three"):
        lr_groups(model, [1.0, 2.0])
    for rate in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and 0 or more"):
            lr_groups(model, [1.0, rate, 3.0])
    with pytest.raises(ValueError, match="above 0"):
        lr_groups(model, [1.0, 0.0, 3.0], depth=12)
    with pytest.raises(ValueError, match="cannot divide"):
        lr_groups(model, [1.0] * 10, depth=0)


def test_other_modules_are_refused() -> None:
    with pytest.raises(ModelError, match="neither a clbench Classifier nor"):
        lr_groups(nn.Linear(2, 2), [1.0, 2.0, 3.0])


def test_transfer_to_the_same_depth_keeps_every_layers_rate() -> None:
    assert transfer_rates(TEN, 12, 12) == pytest.approx([1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9, 10])
    paper = transfer_rates(TEN, 12, 12, division="paper")
    assert paper == pytest.approx([1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 10])


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (6, [2, mean(3, 4), mean(4, 5), 6, mean(7, 8), mean(8, 9)]),
        (1, [mean(2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9)]),
        (24, [r for r in (2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9) for _ in range(2)]),
        # A layer of eight covers one old layer and a half.
        (
            8,
            [
                2,
                (2**0.5 * 3) ** (1 / 1.5),
                (4 * 4**0.5) ** (1 / 1.5),
                (4**0.5 * 5) ** (1 / 1.5),
                6,
                (6**0.5 * 7) ** (1 / 1.5),
                8,
                (8**0.5 * 9) ** (1 / 1.5),
            ],
        ),
    ],
)
def test_transfer_takes_geometric_means_by_position(depth: int, expected: list[float]) -> None:
    assert transfer_rates(TEN, 12, depth) == pytest.approx([1, *expected, 10])


def test_transfer_keeps_the_mean_in_log_space() -> None:
    rng = np.random.default_rng(0)
    for source, depth in itertools.product((1, 3, 8, 12), (1, 2, 5, 6, 12, 13, 24)):
        rates = list(rng.uniform(1e-7, 1e-3, 10))
        old = np.log(transfer_rates(rates, source, source)[1:-1])
        new = np.log(transfer_rates(rates, source, depth)[1:-1])
        assert new.mean() == pytest.approx(old.mean(), rel=1e-12)
        assert new.min() >= old.min() - 1e-9
        assert new.max() <= old.max() + 1e-9


def test_groups_with_transferred_rates() -> None:
    model = BertForSequenceClassification(bert(4))
    groups = lr_groups(model, TEN, depth=12)
    expected = transfer_rates(TEN, 12, 4)
    names = ["embeddings", *(f"layers.{i}" for i in range(1, 5)), "head"]
    assert [group["name"] for group in groups] == names
    assert [group["lr"] for group in groups] == expected
    rates = rate_of_each(model, TEN, depth=12)
    for i in range(4):
        name = f"bert.encoder.layer.{i}.attention.self.query.weight"
        assert rates[name] == expected[i + 1]
    same = lr_groups(model, TEN, depth=4)  # of this depth: not transferred
    assert [(g["name"], g["lr"]) for g in same] == [
        (g["name"], g["lr"]) for g in lr_groups(model, TEN)
    ]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (1, [mean(2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9)]),
        (2, [mean(2, 2, 3, 4, 4, 5), mean(6, 6, 7, 8, 8, 9)]),
    ],
)
def test_alberts_shared_layers_get_one_rate(groups: int, expected: list[float]) -> None:
    config = AlbertConfig(embedding_size=4, num_hidden_layers=12, num_hidden_groups=groups, **SHAPE)
    rates = rate_of_each(AlbertModel(config), TEN, depth=12)
    for number, rate in enumerate(expected):
        name = f"encoder.albert_layer_groups.{number}.albert_layers.0.ffn.weight"
        assert rates[name] == pytest.approx(rate)
    assert rates["encoder.embedding_hidden_mapping_in.weight"] == 1


def test_transfer_to_gpt2_and_distilbert() -> None:
    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=6, n_head=2)
    gpt = rate_of_each(GPT2Model(config), TEN, depth=12)
    expected = transfer_rates(TEN, 12, 6)
    assert gpt["wte.weight"] == gpt["wpe.weight"] == 1
    assert gpt["h.2.mlp.c_fc.weight"] == expected[3]
    assert gpt["ln_f.weight"] == 10
    distil_config = DistilBertConfig(vocab_size=20, dim=8, n_layers=6, n_heads=2, hidden_dim=8)
    distil = rate_of_each(DistilBertModel(distil_config), TEN, depth=12)
    assert distil["transformer.layer.5.ffn.lin1.weight"] == expected[6]
