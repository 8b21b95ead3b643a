from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

from clbench.errors import ModelError
from clbench.models.groups import divide_layers, lr_groups, ten_groups
from clbench.models.load import build_classifier


def bert(layers: int) -> BertConfig:
    return BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )


@pytest.mark.parametrize(
    ("depth", "division", "expected"),
    [
        (12, "code", [[0, 1], [2], [3, 4], [5], [6, 7], [8], [9, 10], [11]]),
        (12, "paper", [[0], [1, 2], [3], [4, 5], [6], [7, 8], [9], [10, 11]]),
        (8, "code", [[i] for i in range(8)]),
        (8, "paper", [[i] for i in range(8)]),
        (24, "code", [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(8)]),
        (6, "code", [[0], [1], [2], [], [3], [4], [5], []]),
        (6, "paper", [[], [0], [1], [2], [], [3], [4], [5]]),
        (1, "code", [[0], [], [], [], [], [], [], []]),
    ],
)
def test_ten_groups(depth: int, division: str, expected: list[list[int]]) -> None:
    assert ten_groups(depth, division=division) == expected


def test_the_codes_division_is_the_default() -> None:
    assert ten_groups(12) == ten_groups(12, division="code")


@pytest.mark.parametrize("division", ["code", "paper"])
def test_every_layer_is_in_one_group(division: str) -> None:
    for depth, parts in itertools.product(range(1, 50), range(1, 20)):
        groups = divide_layers(depth, parts, division)  # type: ignore[arg-type]
        assert len(groups) == parts
        assert [layer for group in groups for layer in group] == list(range(depth))
        sizes = [len(group) for group in groups]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("depth", "parts"), [(0, 8), (12, 0)])
def test_nothing_to_divide(depth: int, parts: int) -> None:
    with pytest.raises(ValueError, match="cannot divide"):
        divide_layers(depth, parts)


def test_unknown_division() -> None:
    with pytest.raises(ValueError, match="'code' or 'paper'"):
        divide_layers(12, 8, "text")  # type: ignore[arg-type]


def test_twelve_layers_get_the_rates_of_their_groups() -> None:
    model = BertForSequenceClassification(bert(12))
    rates = [float(i) for i in range(10)]
    groups = lr_groups(model, rates)
    assert [group["group"] for group in groups] == list(range(10))
    assert [group["name"] for group in groups] == [
        "embeddings",
        *(f"layers.{i}" for i in range(1, 9)),
        "head",
    ]
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    by_layer = [rate[id(model.bert.encoder.layer[i].output.dense.weight)] for i in range(12)]
    assert by_layer == [1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8]
    assert rate[id(model.bert.embeddings.word_embeddings.weight)] == 0
    assert rate[id(model.classifier.weight)] == 9
    assert rate[id(model.bert.pooler.dense.weight)] == 9
    paper = lr_groups(model, rates, division="paper")
    rate = {id(p): group["lr"] for group in paper for p in group["params"]}
    by_layer = [rate[id(model.bert.encoder.layer[i].output.dense.weight)] for i in range(12)]
    assert by_layer == [1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8]


def test_the_groups_move_each_parameter_by_its_own_rate(tmp_path: Path) -> None:
    model = build_classifier(
        str(make_checkpoint("bert", tmp_path)), heads={"a": 2}, head_seed=lambda name: 0
    )
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


def test_groups_without_layers_and_frozen_parameters_are_left_out() -> None:
    model = BertForSequenceClassification(bert(6))
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[0].requires_grad_(False)
    groups = lr_groups(model, [1e-5] * 10)
    assert [group["group"] for group in groups] == [2, 3, 5, 6, 7, 9]


def test_tied_weights_come_once() -> None:
    model = BertForMaskedLM(bert(2))
    found = [id(p) for group in lr_groups(model, [1.0, 2.0, 3.0]) for p in group["params"]]
    assert len(found) == len(set(found)) == len(list(model.parameters()))
    tied = id(model.cls.predictions.decoder.weight)
    assert tied in {id(p) for p in lr_groups(model, [1.0, 2.0, 3.0])[0]["params"]}


def test_a_bare_backbone_is_fine() -> None:
    names = [group["name"] for group in lr_groups(BertModel(bert(2)), [1.0, 2.0, 3.0])]
    assert names == ["embeddings", "layers.1", "head"]


@pytest.mark.parametrize("depth", [0, -2, 2.5, "12"])
def test_a_depth_that_is_no_number_of_layers(depth: object) -> None:
    with pytest.raises(ValueError, match="depth must be a number of layers, 1 or more, not"):
        lr_groups(BertModel(bert(2)), [1.0] * 10, depth=depth)  # type: ignore[arg-type]


def test_too_few_rates() -> None:
    with pytest.raises(ValueError, match="at least three"):
        lr_groups(BertModel(bert(2)), [1.0, 2.0])


@pytest.mark.parametrize("rates", [1e-3, "123", ["a", "b", "c"], None, [[1.0], [2.0], [3.0]]])
def test_what_is_no_list_of_numbers(rates: object) -> None:
    with pytest.raises(ValueError, match="must be a list of numbers"):
        lr_groups(BertModel(bert(2)), rates)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_rates_that_no_optimizer_can_take(rate: float) -> None:
    with pytest.raises(ValueError, match="finite and 0 or more"):
        lr_groups(BertModel(bert(2)), [1.0, rate, 3.0])


def test_other_modules_are_refused() -> None:
    with pytest.raises(ModelError, match="neither a clbench Classifier nor"):
        lr_groups(nn.Linear(2, 2), [1.0, 2.0, 3.0])
