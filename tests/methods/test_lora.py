from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from helpers.cell import Cell, changed, differ, weights
from helpers.checkpoints import CHECKPOINTS, make_checkpoint

from clbench.cli.extend import KINDS
from clbench.core.errors import SettingsError
from clbench.methods.base import Vanilla
from clbench.methods.lora import Lora
from clbench.suite.baselines import read_baseline

pytest.importorskip("peft")
QUERY = "backbone.encoder.layer.0.attention.self.query"


def test_only_additions_and_heads_change(folder: Path) -> None:
    cell = Cell(folder, Lora())
    before = weights(cell)
    cell.run()
    moved = changed(before, cell)
    assert moved == {name for name in before if "lora_" in name or name.startswith("heads.")}
    assert len([name for name in moved if "lora_" in name]) == 3 * 2 * 2  # layers, q and v, A and B


def test_a_layer_adds_the_scaled_low_rank_product(folder: Path) -> None:
    """x W' + b + (alpha / r) · x A' B', by hand."""
    cell = Cell(folder, Lora(r=2, alpha=6)).run()
    now = weights(cell)
    layer = cell.model.get_submodule(QUERY).eval()
    values = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    down = now[f"{QUERY}.lora_A.task.weight"]
    up = now[f"{QUERY}.lora_B.task.weight"]
    assert down.shape == (2, 32)
    assert up.abs().max() > 0
    plain = now[f"{QUERY}.base_layer.weight"], now[f"{QUERY}.base_layer.bias"]
    expected = values @ plain[0].T + plain[1] + 3.0 * values @ down.T @ up.T
    torch.testing.assert_close(layer(values), expected)


def test_initial_outputs_are_those_of_the_pretrained_model(folder: Path) -> None:
    plain, wrapped = Cell(folder, Vanilla()), Cell(folder, Lora())
    outputs = []
    for cell in (plain, wrapped):
        stage = cell.open(0)
        stage.model.eval()
        with torch.no_grad():
            outputs.append(stage.logits(next(iter(stage.batches("x")))))
    torch.testing.assert_close(outputs[0], outputs[1])


def test_adapters_depend_on_the_seed(folder: Path) -> None:
    first = Cell(folder, Lora())
    assert not differ(first, Cell(folder, Lora()))
    assert differ(first, Cell(folder, Lora(), seed=1))


def test_one_adapter_per_task_forgets_nothing(folder: Path) -> None:
    cell = Cell(folder, Lora(adapters="task"))
    cell.stage(0)
    before = cell.scored(0)
    cell.stage(1)
    assert torch.equal(cell.scored(0), before)
    one = Cell(folder, Lora())
    one.stage(0)
    before = one.scored(0)
    one.stage(1)
    assert not torch.equal(one.scored(0), before)


def test_only_one_adapter_per_task_needs_the_task() -> None:
    assert not Lora(adapters="one").needs_task_id
    assert Lora(adapters="task").needs_task_id


def test_the_baselines_differ_in_the_number_of_adapters_only() -> None:
    shared, task, old = (read_baseline(f"lora{end}") for end in ("-shared", "-task", ""))
    assert {**shared.settings, "adapters": "task"} == task.settings
    assert shared.settings["adapters"] == "one"
    assert (old.settings, old.sources, old.sweep) == (shared.settings, shared.sources, shared.sweep)


def test_layer_groups_and_snapshots_include_the_additions(folder: Path) -> None:
    cell = Cell(folder, Lora())
    names = [name for group in cell.model.layer_groups() for name in group.parameters]
    assert sorted(names) == sorted(name for name, _ in cell.model.named_parameters())
    assert f"{QUERY}.lora_A.task.weight" in cell.context.snapshot()


QUERY_AND_VALUE = {
    **{kind: {"query", "value"} for kind in ("bert", "roberta", "albert", "electra")},
    "distilbert": {"q_lin", "v_lin"},
    "xlm": {"q_lin", "v_lin"},
    "deberta-v2": {"query_proj", "value_proj"},
    "modernbert": {"Wqkv"},
    "gpt2": {"c_attn"},
    "mpnet": {"q", "v"},
    "llama": {"q_proj", "v_proj"},
    "gpt_neox": {"query_key_value"},
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_query_and_value_of_every_layer_of_an_architecture(kind: str, tmp_path: Path) -> None:
    cell = Cell(make_checkpoint(kind, tmp_path), Lora())
    paths = [name.removesuffix(".lora_A.task.weight") for name in weights(cell) if "lora_A" in name]
    names = [path.rpartition(".")[2] for path in paths]
    assert set(names) == QUERY_AND_VALUE[kind]
    layers = 2 if kind == "albert" else 3  # ALBERT: groups that share their weights
    assert len(names) == layers * len(QUERY_AND_VALUE[kind])


def test_a_model_without_query_and_value_is_an_error(folder: Path) -> None:
    cell = Cell(folder, Vanilla())
    cell.model.backbone = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(SettingsError, match=r"'lora': .* not found .* Set targets to names"):
        Lora().setup(cell.context)


def test_targets_select_modules_and_wrong_ones_are_refused(folder: Path) -> None:
    every = Cell(folder, Lora(targets="all-linear"))
    named = Cell(folder, Lora(targets=["output.dense"]))
    assert sum("lora_A" in name for name in weights(every)) == 3 * 6
    assert sum("lora_A" in name for name in weights(named)) == 3 * 2
    with pytest.raises(SettingsError, match=r"no linear module 'qery'. Did you mean 'query'"):
        Cell(folder, Lora(targets=["qery"]))
    words = r"must be 'query-value' or 'all-linear'"
    some = r"a list in \[brackets\] with at least 1 item"
    with pytest.raises(SettingsError, match=f"'lora': targets: {words} or {some}"):
        Lora(targets=[])
    with pytest.raises(
        SettingsError, match=r"'lora': targets item 2: must have at least 1 character"
    ):
        Lora(targets=["query", ""])


def test_baselines_can_be_listed_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert read_baseline("ewc-lora").sweep
    assert "ewc-lora" in {row[0].split()[0] for row in KINDS["methods"](None) if row[0]}


def test_missing_peft_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"lora' needs peft: pip install 'clbench\[lora\]'"):
        Lora()
