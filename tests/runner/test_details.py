"""Details of runner that no other test notices."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.handmade import pair, reference
from helpers.workspace import Workspace

from clbench.results.reading import table_order
from clbench.runner import cell_runner
from clbench.runner.fit import total_mb


def test_a_stage_that_was_scored_on_other_rows_is_trained_again(world: Workspace) -> None:
    world.run(epochs=1, keep_stages=True)
    path = world.folder / "mood-dev.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-2]) + "\n")
    run = world.run(epochs=1, keep_stages=True, replace=True)
    assert not run.failed, run.failed[0].reason
    assert [stage.cached for stage in run.cells[0].stages] == [False, False]


def test_no_seed_takes_the_stage_of_another_one(world: Workspace) -> None:
    both = world.run("both", epochs=1, seeds=[0, 1]).cells
    alone = world.run("alone", epochs=1, seeds=[1]).cells
    assert both[1].R == alone[0].R
    assert not any(stage.cached for cell in both for stage in cell.stages)


def test_a_task_is_relearned_until_it_is_as_after_its_own_stage(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = world.suite.read_text()
    world.suite.write_text(text.replace("curve_rows = 10", "curve_rows = 10\nrelearn_rows = 8"))
    before: list[float] = []
    monkeypatch.setattr(cell_runner, "relearn", lambda *a: before.append(a[4]) or {})
    (cell,) = world.run(scenario="opposite", epochs=2).cells
    assert before == [cell.R[0][0]]
    assert cell.R[0][0] != cell.R[1][0]  # its labels are contradicted


def test_rows_are_kept_after_their_own_stage_and_at_the_end(world: Workspace) -> None:
    (cell,) = world.run(scenario="three", epochs=1).cells
    kept = [[text is not None for text in row] for row in cell.correct]
    assert kept == [[True, False, False], [False, True, False], [True, True, True]]


def test_cells_are_sorted_by_scenario_then_references_last() -> None:
    order = table_order(["sst2-mrpc", "other"], ["vanilla", "ewc"])
    cells: list[Any] = [
        reference(1, 0.7), pair("ewc", 0), pair("vanilla", 1), pair("vanilla", 0),
        pair("ewc", 0, scenario="other"), pair("lwf", 0),
    ]  # fmt: skip
    assert [cell.key for cell in sorted(cells, key=order)] == [
        "sst2-mrpc--vanilla--seed0", "sst2-mrpc--vanilla--seed1", "sst2-mrpc--ewc--seed0",
        "sst2-mrpc--lwf--seed0", "sst2-mrpc--reference1--seed0", "other--ewc--seed0",
    ]  # fmt: skip


def test_a_process_takes_more_than_its_tensors() -> None:
    assert total_mb(1000.0) == pytest.approx(1.1 * 1000.0 + 700.0)
