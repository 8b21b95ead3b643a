"""O-LoRA against its formulas, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from helpers.cell import PROTOCOL, Cell, changed, weights

from clbench.core.errors import SettingsError
from clbench.methods.lora import Lora, OLora
from clbench.training.protocol import Protocol

pytest.importorskip("peft")
QUERY = "backbone.encoder.layer.0.attention.self.query"
THREE = ("a", "b", "c")
LONG = PROTOCOL.model_copy(update={"epochs": 8})


def overlap(cell: Cell) -> float:
    """Return the sum of absolute entries of A_0 A_1ᵀ over the matrices, after two tasks."""
    parts = [kept.split(8) for kept in cell.method.earlier.values()]
    return sum(float((first @ second.T).abs().sum()) for first, second in parts)


@pytest.mark.parametrize(("norm", "expected"), [("squared", 13.0), ("absolute", 5.0)])
def test_the_penalty_sums_the_entries_of_the_overlap(
    folder: Path, norm: Literal["squared", "absolute"], expected: float
) -> None:
    """A_0 = (e0, e1) and A_1 = (3·e0 + 4·e2, -2·e1) overlap by 3 and -2; six matrices."""
    cell = Cell(folder, OLora(r=2, weight=0.5, norm=norm), heads=THREE)
    assert cell.method.penalty(cell.begin(0)) is None
    with torch.no_grad():
        for name, value in cell.model.named_parameters():
            if "lora_A." in name:
                value.zero_()
                value[0, 0], value[0, 2], value[1, 1] = 3.0, 4.0, -2.0
                path = name.removesuffix(".lora_A.task.weight")
                cell.method.earlier[path] = torch.eye(2, 32)
    penalty = cell.method.penalty(cell.begin(1))
    assert penalty is not None
    assert penalty.item() == pytest.approx(0.5 * 6 * expected, rel=1e-6)


def test_a_layer_adds_the_products_of_all_tasks(folder: Path) -> None:
    """x W' + b + (alpha / r)·Σ_i x A_i' B_i', with A_i and B_i as each task left them."""
    cell = Cell(folder, OLora(r=2, alpha=6), heads=THREE)
    pairs = []
    now = weights(cell)
    base = now[f"{QUERY}.base_layer.weight"], now[f"{QUERY}.base_layer.bias"]
    for index in range(3):
        cell.train(index)
        now = weights(cell)
        pairs.append((now[f"{QUERY}.lora_A.task.weight"], now[f"{QUERY}.lora_B.task.weight"]))
        cell.method.after_stage(cell.open(index))
    assert torch.equal(cell.method.earlier[QUERY], torch.cat([down for down, _ in pairs]))
    values = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    expected = values @ base[0].T + base[1]
    for down, up in pairs:
        assert up.abs().max() > 0
        expected += 3.0 * values @ down.T @ up.T
    layer = cell.model.get_submodule(QUERY).eval()
    torch.testing.assert_close(layer(values), expected)


def test_only_the_tasks_addition_is_trained_and_each_task_starts_a_new_one(folder: Path) -> None:
    cell = Cell(folder, OLora(), heads=THREE)
    first = weights(cell)[f"{QUERY}.lora_A.task.weight"]
    cell.stage(0)
    before = weights(cell)
    assert (before[f"{QUERY}.lora_B.task.weight"] == 0).all()
    cell.train(1)
    moved = changed(before, cell)
    trained = {name for name in before if ".lora_" in name}
    assert moved == trained | {"heads.b.weight", "heads.b.bias"}
    second = before[f"{QUERY}.lora_A.task.weight"]
    assert not torch.equal(first, second)
    for drawn in (first, second):  # both are uniform in ± 1 / √32
        assert drawn.abs().max() <= 32**-0.5
        assert float(drawn.std()) == pytest.approx((32 * 3) ** -0.5, rel=0.1)


def test_the_first_task_trains_as_lora_does(folder: Path) -> None:
    own, plain = Cell(folder, OLora()), Cell(folder, Lora())
    own.train(0)
    plain.train(0)
    mine, other = weights(own), weights(plain)
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, other[name])


def test_a_large_weight_makes_tasks_orthogonal(folder: Path) -> None:
    overlaps = []
    for weight in (1e-9, 10.0):
        cell = Cell(folder, OLora(weight=weight, lr=1e-2), protocol=LONG)
        cell.run()
        overlaps.append(overlap(cell))
    assert overlaps[1] < 0.5 * overlaps[0]


def test_weights_in_bf16_are_refused() -> None:
    OLora().check_protocol(Protocol(head="language-model"))
    with pytest.raises(SettingsError, match=r"are lost in weights in bf16. Set weights = "):
        OLora().check_protocol(Protocol(head="language-model", weights="bf16"))
