from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
)

from clbench.models.groups import lr_groups
from clbench.models.rates import transfer_rates

TEN = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
SHAPE: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
}


def mean(*rates: float) -> float:
    return math.prod(rates) ** (1 / len(rates))


def test_the_same_depth_keeps_every_layers_rate() -> None:
    assert transfer_rates(TEN, 12, 12) == pytest.approx([1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9, 10])
    paper = transfer_rates(TEN, 12, 12, division="paper")
    assert paper == pytest.approx([1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 10])


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (6, [2, mean(3, 4), mean(4, 5), 6, mean(7, 8), mean(8, 9)]),
        (4, [mean(2, 2, 3), mean(4, 4, 5), mean(6, 6, 7), mean(8, 8, 9)]),
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
def test_other_depths(depth: int, expected: list[float]) -> None:
    assert transfer_rates(TEN, 12, depth) == pytest.approx([1, *expected, 10])


def test_the_mean_in_log_space_stays() -> None:
    rng = np.random.default_rng(0)
    for found_on in (1, 3, 8, 12):
        for depth in (1, 2, 5, 6, 12, 13, 24):
            rates = list(rng.uniform(1e-7, 1e-3, 10))
            old = np.log(transfer_rates(rates, found_on, found_on)[1:-1])
            new = np.log(transfer_rates(rates, found_on, depth)[1:-1])
            assert new.mean() == pytest.approx(old.mean(), rel=1e-12)
            assert new.min() >= old.min() - 1e-9
            assert new.max() <= old.max() + 1e-9


def test_a_flat_distribution_is_flat_at_any_depth() -> None:
    assert transfer_rates([2e-5] * 10, 12, 7) == pytest.approx([2e-5] * 9)


@pytest.mark.parametrize(
    ("rates", "found_on", "depth", "message"),
    [
        ([1.0, 2.0], 12, 6, "at least three"),
        ([1.0, 0.0, 2.0], 12, 6, "above 0"),
        ([1.0, 1.0, 2.0], 0, 6, "cannot divide"),
        ([1.0, 1.0, 2.0], 6, 0, "cannot carry"),
    ],
)
def test_what_cannot_be_carried(
    rates: list[float], found_on: int, depth: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        transfer_rates(rates, found_on, depth)


def by_parameter(model: Any, **options: Any) -> dict[str, float]:
    groups = lr_groups(model, TEN, depth=12, **options)
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert len(rate) == len(list(model.parameters()))
    return {name: rate[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("layers", [4, 6, 12])
def test_bert_of_several_depths(layers: int) -> None:
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=layers, **SHAPE))
    rates = by_parameter(model)
    expected = transfer_rates(TEN, 12, layers)
    for i in range(layers):
        name = f"bert.encoder.layer.{i}.attention.self.query.weight"
        assert rates[name] == pytest.approx(expected[i + 1])
    assert rates["bert.embeddings.word_embeddings.weight"] == 1
    assert rates["classifier.weight"] == 10


def test_names_and_places_of_carried_groups() -> None:
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=4, **SHAPE))
    groups = lr_groups(model, TEN, depth=12)
    assert [group["name"] for group in groups] == [
        "embeddings",
        "layers.1",
        "layers.2",
        "layers.3",
        "layers.4",
        "head",
    ]
    same = lr_groups(model, TEN, depth=4)  # found on this depth: the groups as they were
    assert [(g["name"], g["lr"]) for g in same] == [
        (g["name"], g["lr"]) for g in lr_groups(model, TEN)
    ]


def test_alberts_shared_layers_get_one_rate() -> None:
    model = AlbertModel(AlbertConfig(embedding_size=4, num_hidden_layers=12, **SHAPE))
    rates = by_parameter(model)
    shared = {rate for name, rate in rates.items() if "albert_layer_groups" in name}
    assert list(shared) == [pytest.approx(mean(2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9))]
    assert rates["encoder.embedding_hidden_mapping_in.weight"] == 1


def test_alberts_halves_get_the_means_of_halves() -> None:
    config = AlbertConfig(embedding_size=4, num_hidden_layers=12, num_hidden_groups=2, **SHAPE)
    rates = by_parameter(AlbertModel(config))
    for half, expected in enumerate([mean(2, 2, 3, 4, 4, 5), mean(6, 6, 7, 8, 8, 9)]):
        name = f"encoder.albert_layer_groups.{half}.albert_layers.0.ffn.weight"
        assert rates[name] == pytest.approx(expected)


def test_gpt2_and_distilbert() -> None:
    gpt = by_parameter(
        GPT2Model(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=6, n_head=2))
    )
    expected = transfer_rates(TEN, 12, 6)
    assert gpt["wte.weight"] == gpt["wpe.weight"] == 1
    assert gpt["h.2.mlp.c_fc.weight"] == pytest.approx(expected[3])
    assert gpt["ln_f.weight"] == 10
    distil = by_parameter(
        DistilBertModel(DistilBertConfig(vocab_size=20, dim=8, n_layers=6, n_heads=2, hidden_dim=8))
    )
    assert distil["transformer.layer.5.ffn.lin1.weight"] == pytest.approx(expected[6])
