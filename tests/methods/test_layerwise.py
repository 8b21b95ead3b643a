from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, weights
from helpers.checkpoints import make_checkpoint, save_generator

from clbench.methods.by_depth import Layerwise
from clbench.models.answering import build_answering_model
from clbench.models.classifier import build_classifier
from clbench.models.groups import lr_groups, transfer_rates
from clbench.suite.baselines import read_baseline

PUBLISHED = [
    3.29537129e-06,
    4.36300010e-06,
    9.21473516e-07,
    1.92275197e-06,
    2.84902669e-06,
    2.14311562e-06,
    3.26747809e-06,
    3.69894365e-06,
    3.18562234e-06,
    1.11884272e-05,
]
UP = [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_flat_distribution_is_vanilla(folder: Path, vanilla: Cell) -> None:
    cell = Cell(folder, Layerwise(multiples=[1.0] * 10, depth=12)).run()
    mine, plain = weights(cell), weights(vanilla)
    for name, value in mine.items():
        torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-7)


def groups_of(cell: Cell, index: int = 0) -> tuple[dict[str, float], dict[str, float]]:
    """Rates by parameter and by group."""
    groups = cell.method.parameter_groups(cell.open(index))
    names = {id(p): name for name, p in cell.model.named_parameters()}
    return (
        {names[id(p)]: group["lr"] for group in groups for p in group["params"]},
        {group["name"]: group["lr"] for group in groups},
    )


def test_multiples_equal_rates_over_the_flat_rate(folder: Path) -> None:
    relative, named = groups_of(Cell(folder, Layerwise(multiples=UP)))
    absolute, _ = groups_of(Cell(folder, Layerwise(rates=[1e-3 * m for m in UP])))
    assert relative == pytest.approx(absolute)
    assert named == pytest.approx(
        {"embeddings": 1e-3, "layers.1": 2e-3, "layers.2": 3e-3, "layers.3": 4e-3, "head": 5e-3}
    )


def test_only_the_head_of_the_stage_is_trained(folder: Path) -> None:
    rates, _ = groups_of(Cell(folder, Layerwise(multiples=UP)), index=1)
    assert "heads.t1.weight" in rates
    assert "heads.t0.weight" not in rates


def test_rates_are_recorded_as_curves(folder: Path) -> None:
    cell = Cell(folder, Layerwise(multiples=[0.5, 1.0, 2.0])).run()
    for trace in cell.traces:
        assert trace.curves["rate.embeddings"] == [[0.0, 5e-4]]
        assert trace.curves["rate.layers.1"] == [[0.0, 1e-3]]
        assert trace.curves["rate.head"] == [[0.0, 2e-3]]


@pytest.mark.parametrize(
    ("kind", "trimmed"),
    [("bert", True), ("albert", False), ("gpt2", True), ("distilbert", False), ("roberta", False)],
)
def test_every_weight_of_an_architecture_is_in_one_group(
    tmp_path: Path, kind: str, trimmed: bool
) -> None:
    folder = make_checkpoint(kind, tmp_path)
    vocabulary = np.arange(0, 40, 2) if trimmed else None
    model = build_classifier(
        str(folder), heads={"a": 2}, head_seed=lambda _: 0, vocabulary=vocabulary
    )
    depth = 2 if kind == "albert" else 3
    expected = transfer_rates(PUBLISHED, 12, depth)
    groups = lr_groups(model, PUBLISHED, depth=12)
    assert [group["lr"] for group in groups] == pytest.approx(expected)
    table = id(model.backbone.get_input_embeddings().weight)
    assert table in {id(p) for p in groups[0]["params"]}
    trained = [id(p) for group in groups for p in group["params"]]
    assert sorted(trained) == sorted(id(p) for p in model.parameters())


def test_bertcl_combined_is_the_published_distribution() -> None:
    baseline = read_baseline("bertcl-combined")
    assert set(baseline.sources) == set(baseline.settings)
    method = Layerwise(**baseline.settings)
    assert method.multiples is not None
    assert [2e-5 * m for m in method.multiples] == pytest.approx(PUBLISHED, rel=1e-12)
    assert (method.depth, method.division) == (12, "code")


def test_bertcl_combined_on_three_layers_takes_geometric_means(folder: Path) -> None:
    protocol = PROTOCOL.model_copy(update={"lr": 4e-5})
    method = Layerwise(**read_baseline("bertcl-combined").settings)
    _, named = groups_of(Cell(folder, method, protocol=protocol))
    g = PUBLISHED
    thirds = [(g[1] ** 2 * g[2] * g[3]) ** 0.25, (g[3] * g[4] * g[5] ** 2) ** 0.25]
    assert named["embeddings"] == pytest.approx(2 * g[0])
    assert named["layers.1"] == pytest.approx(2 * thirds[0])
    assert named["layers.2"] == pytest.approx(2 * thirds[1])
    assert named["layers.3"] == pytest.approx(2 * (g[6] * g[7] ** 2 * g[8]) ** 0.25)
    assert named["head"] == pytest.approx(2 * g[9])


def test_a_decay_gives_each_depth_a_part_of_the_rate_above(folder: Path) -> None:
    _, named = groups_of(Cell(folder, Layerwise(decay=0.5)))
    assert named == pytest.approx(
        {
            "embeddings": 1e-3 / 16,
            "layers.1": 1e-3 / 8,
            "layers.2": 1e-3 / 4,
            "layers.3": 1e-3 / 2,
            "head": 1e-3,
        }
    )


def test_the_last_norm_of_a_decoder_has_the_flat_rate(tmp_path: Path) -> None:
    model = build_answering_model(str(save_generator("gpt2", tmp_path)), pad_id=0)
    stage: Any = SimpleNamespace(
        model=model,
        protocol=PROTOCOL,
        trainable=lambda: list(model.parameters()),
        record=lambda *_: None,
    )
    rates = {g["name"]: g["lr"] for g in Layerwise(decay=0.1).parameter_groups(stage)}
    depth = len(model.layer_groups()) - 2
    assert rates["head"] == PROTOCOL.lr
    assert rates[f"layers.{depth}"] == pytest.approx(0.1 * PROTOCOL.lr)
    assert rates["embeddings"] == pytest.approx(PROTOCOL.lr * 0.1 ** (depth + 1))


def test_a_decay_of_one_is_vanilla_and_earlier_cells_do_not_name_it(
    folder: Path, vanilla: Cell
) -> None:
    cell = Cell(folder, Layerwise(decay=1.0)).run()
    for name, value in weights(cell).items():
        torch.testing.assert_close(value, weights(vanilla)[name], rtol=1e-5, atol=1e-7)
    assert "decay" not in Layerwise(multiples=UP).settings()
