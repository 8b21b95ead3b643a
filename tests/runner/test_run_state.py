"""A run's folder is read once, and again only if another process has changed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.fake_engine import FakeExecutor, result_of

from clbench import RunOptions, api
from clbench.results.store import Store
from clbench.runner.run_state import RunState, read_run_state


def state_of(**options: Any) -> RunState:
    replace = options.pop("replace", False)
    options = {"references": False, **options}
    return read_run_state(api.plan_run("mine.toml", RunOptions(**options)), replace=replace)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run folders in the order of their readings."""
    folders: list[Path] = []
    original = Store.read

    def read(self: Store, **options: Any) -> Any:
        folders.append(self.out)
        return original(self, **options)

    monkeypatch.setattr(Store, "read", read)
    return folders


def test_a_run_reads_its_folder_once(place: Path, engine: FakeExecutor, reads: list[Path]) -> None:
    api.execute(state_of(seeds=[0]))
    assert len(reads) == 1
    run = api.execute(state_of())
    assert len(reads) == 2
    assert len(engine.ran) == 4
    assert [cell.key for cell in run.cells] == [
        "one-two--vanilla--seed0",
        "one-two--vanilla--seed1",
        "one-two--frozen--seed0",
        "one-two--frozen--seed1",
    ]
    api.execute(state_of())
    assert len(reads) == 3


def test_the_final_run_equals_the_folder(place: Path, engine: FakeExecutor) -> None:
    api.execute(state_of(methods=["frozen"], seeds=[1], references=True))
    run = api.execute(state_of(references=True))
    folder = Store(place / "results/mine").read().cells
    assert [cell.key for cell in run.cells] == [cell.key for cell in folder]
    assert list(run.cells) == folder


def test_cells_that_another_process_finishes_meanwhile_do_not_run_again(
    place: Path, engine: FakeExecutor
) -> None:
    state = state_of()
    api.execute(state_of(seeds=[0]))
    engine.ran.clear()
    run = api.execute(state)
    assert engine.ran == ["one-two--vanilla--seed1", "one-two--frozen--seed1"]
    assert len(run.cells) == 4


def test_the_scores_are_rewritten_only_if_a_cell_is_newer(
    place: Path, engine: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.execute(state_of())
    scores = place / "results/mine/scores.csv"
    before = scores.stat().st_mtime_ns
    api.execute(state_of())
    assert scores.stat().st_mtime_ns == before
    cell = state_of().plan.cells[0]
    Store(place / "results/mine").write_cell(result_of(cell))
    api.execute(state_of())
    assert scores.stat().st_mtime_ns > before


def test_nothing_is_moved_before_the_lock_is_held(place: Path, engine: FakeExecutor) -> None:
    api.execute(state_of())
    state = state_of(epochs=1, replace=True)
    cells = place / "results/mine/cells"
    assert len(state.replaced) == len(state.pending) == 4
    assert not (cells / "replaced").exists()
    api.execute(state)
    assert len(list((cells / "replaced").iterdir())) == 4
