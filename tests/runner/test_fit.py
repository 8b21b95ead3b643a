"""Memory of cells from shapes, held against what training takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.memory import FLOAT32, baselines, first_cell, measure
from clbench.methods.base import METHODS
from clbench.models import checkpoint
from clbench.runner import fit
from clbench.runner.fit import CellMemory
from clbench.runner.resources import Resources, machine_mb
from clbench.suite.baselines import Baseline
from clbench.training.device import Precision

TOLERANCE = 0.2
FAST = ("vanilla", "frozen", "lora", "replay", "l2-sp")

Prepared = tuple[Any, Any]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    folder = tmp_path_factory.mktemp("fit")
    options = {"steps": 2, "rows": 8, "limit": 24}
    return {model: first_cell(model, folder, **options) for model in ("tiny", "tiny-gpt")}


def check(cell: Any, prepared: Any, name: str, *, most: float = math.inf) -> None:
    baseline = next(each for each in baselines(cell) if each.method == name)
    cell = replace(cell, baseline=baseline)
    taken = measure(cell, prepared)
    estimate = fit.cell_memory(cell, prepared, FLOAT32)
    assert estimate.training == pytest.approx(taken.training, rel=TOLERANCE)
    assert (1 - TOLERANCE) * taken.peak <= estimate.peak <= most * taken.peak


@pytest.mark.parametrize("name", FAST)
def test_the_estimate_is_what_training_takes(cells: dict[str, Prepared], name: str) -> None:
    check(*cells["tiny"], name, most=1 + TOLERANCE)


def all_methods() -> Iterator[tuple[str, str]]:
    for name in sorted(METHODS):
        kinds = METHODS.get(name).head_kinds
        if "classification" in kinds:
            yield "tiny", name
        if "language-model" in kinds:
            yield "tiny-gpt", name


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), [*all_methods()])
def test_the_estimate_holds_for_every_method(
    cells: dict[str, Prepared], model: str, name: str
) -> None:
    cell, prepared = cells[model]
    if name not in {baseline.method for baseline in baselines(cell)}:
        pytest.skip(f"{name} refuses this protocol")
    check(cell, prepared, name)


def test_the_estimate_holds_where_the_rows_depend_on_what_is_written(
    cells: dict[str, Prepared],
) -> None:
    cell, prepared = cells["tiny-gpt"]
    baseline = next(each for each in baselines(cell) if each.method == "self-sft")
    dropping = replace(baseline, settings={**baseline.settings, "otherwise": "drop"})
    some = (
        fit.cell_memory(replace(cell, baseline=b), prepared, FLOAT32) for b in (baseline, dropping)
    )
    assert len({each.training for each in some}) == 1


def test_no_weights_are_read(cells: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "checked", lambda model, folder, name: model)
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)
    cell, prepared = cells["tiny"]
    assert fit.cell_memory(cell, prepared, FLOAT32).training > 20


def test_bf16_weights_and_checkpointing_need_less(cells: dict[str, Prepared]) -> None:
    cell, prepared = cells["tiny-gpt"]

    def peak(**changes: Any) -> float:
        protocol = cell.protocol.model_copy(update=changes)
        return fit.cell_memory(replace(cell, protocol=protocol), prepared, FLOAT32).training

    plain = peak()
    assert peak(gradient_checkpointing=True) < plain
    assert peak(accumulation=4) < plain
    assert peak(weights="bf16") < 0.7 * plain


def test_the_smallest_change_that_fits(
    cells: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, prepared = cells["tiny-gpt"]
    (need,) = fit.needs([(cell, prepared)], FLOAT32)
    assert need.memory is not None
    need_mb = fit.total_mb(need.memory.peak)
    change = fit.smallest_change([need], FLOAT32, need_mb - 1)
    assert change is not None
    assert change[0].startswith("accumulation = ")
    assert fit.total_mb(change[1]) < need_mb - 1
    (need,) = fit.needs([cells["tiny"]], FLOAT32)
    assert fit.smallest_change([need], FLOAT32, fit.PROCESS_MB) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # peft is not installed
    assert fit.smallest_change([need], FLOAT32, fit.PROCESS_MB) is None


def test_a_change_that_the_method_cannot_take_is_passed_over(
    cells: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_in_parts(cell: Any, *arguments: Any) -> CellMemory:
        if cell.protocol.accumulation > 1:
            raise RuntimeError("not in parts")
        return CellMemory(1.0, 1.0)

    monkeypatch.setattr(fit, "cell_memory", fails_in_parts)
    need = fit.Need(*cells["tiny-gpt"], CellMemory(9.0, 9.0))
    change = fit.smallest_change([need], FLOAT32, fit.PROCESS_MB + 2)
    assert change == ("gradient_checkpointing = true", 1.0)


def test_a_change_that_the_method_refuses_is_not_proposed(
    cells: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    def small_in_bf16(cell: Any, *arguments: Any) -> CellMemory:
        small = cell.protocol.weights == "bf16" and cell.baseline != fit.ADAPTERS
        return CellMemory(*(1.0, 1.0) if small else (9.0, 9.0))

    monkeypatch.setattr(fit, "cell_memory", small_in_bf16)
    cell, prepared = cells["tiny-gpt"]
    changes = []
    for name in ("vanilla", "smart"):
        own = replace(cell, baseline=Baseline(name=name, method=name))
        need = fit.Need(own, prepared, CellMemory(9.0, 9.0))
        changes.append(fit.smallest_change([need], FLOAT32, fit.PROCESS_MB + 2))
    assert changes == [('weights = "bf16"', 1.0), None]


def test_adapters_alone_come_before_adapters_with_other_changes(
    cells: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    def small_adapters(cell: Any, *arguments: Any) -> CellMemory:
        return CellMemory(*(1.0, 1.0) if cell.baseline == fit.ADAPTERS else (9.0, 9.0))

    monkeypatch.setattr(fit, "cell_memory", small_adapters)
    need = fit.Need(*cells["tiny-gpt"], CellMemory(9.0, 9.0))
    assert fit.smallest_change([need], FLOAT32, fit.PROCESS_MB + 2) == ("the method lora", 1.0)


def test_a_method_that_needs_numbers_is_named(cells: dict[str, Prepared], monkeypatch: Any) -> None:
    def fails(*arguments: Any) -> CellMemory:
        raise RuntimeError("not this one")

    monkeypatch.setattr(fit, "cell_memory", fails)
    (need,) = fit.needs([cells["tiny"]], Precision("float32", "cpu"))
    assert need.memory is None
    assert need.reason.startswith("cannot be estimated: ")


def test_the_scenario_with_the_largest_batch_counts(
    cells: dict[str, Prepared], monkeypatch: Any
) -> None:
    monkeypatch.setattr(fit, "cell_memory", lambda *arguments: CellMemory(1.0, 1.0))
    cell, prepared = cells["tiny"]
    small = replace(cell, protocol=cell.protocol.model_copy(update={"batch_size": 2}))
    other = replace(cell, baseline=Baseline("frozen", "frozen"))
    found = fit.needs([(small, prepared), (cell, prepared), (other, prepared)], FLOAT32, seconds=0)
    assert [need.cell.protocol.batch_size for need in found] == [8, 8]
    assert found[0].memory is not None
    assert found[1].reason.startswith("not estimated after 0 s")


def test_the_room_is_shared_by_workers() -> None:
    import torch

    cpu = torch.device("cpu")
    whole = fit.room_mb(cpu, Resources())
    assert whole == machine_mb()
    assert fit.room_mb(cpu, Resources(workers=4)) == pytest.approx(whole / 4)
    assert fit.room_mb(cpu, Resources(address="auto")) is None
