from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.handmade import recipe
from helpers.report_runs import cell, make_run

from clbench.core.errors import RunFolderError
from clbench.methods.base import METHODS
from clbench.report.content import gather
from clbench.report.runs import read_runs
from clbench.results.store import Store


def read(*folders: Path) -> tuple[list[str], list[str]]:
    """Methods in their order, and notes."""
    cells, notes, _ = read_runs([Store(folder) for folder in folders])
    return list(dict.fromkeys(cell.baseline for cell in cells)), notes


def test_equal_methods_of_two_runs_are_told_apart(tmp_path: Path) -> None:
    methods, notes = read(make_run(tmp_path / "a"), make_run(tmp_path / "b", better=0.0))
    assert methods == ["vanilla", "ewc", "vanilla (b)", "ewc (b)"]
    assert notes == []


def test_methods_of_another_protocol_are_told_apart(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    store = Store(second)
    with store.lock():
        suite = store.read_suite()
        store.write_suite({**suite, "protocol": {"model": "tiny", "limit": 32}})
        store.write_cell(cell("one", "lwf", 0, 0.7))
    (note,) = read(first, second)[1]
    assert note.startswith("The protocols differ (limit: None in a, 32 in b)")
    third = make_run(tmp_path / "more" / "b")
    methods, _ = read(first, second, third)
    name = tmp_path.name
    assert methods == [
        *("vanilla", "ewc", f"vanilla ({name}/b)", f"ewc ({name}/b)", f"lwf ({name}/b)"),
        *("vanilla (more/b)", "ewc (more/b)"),
    ]


def test_paths_of_one_model_do_not_tell_runs_apart(tmp_path: Path) -> None:
    stores = [Store(tmp_path / name) for name in "ab"]
    for seed, store in enumerate(stores):
        protocol = {"model": f"/{seed}/minilm", "corpus": f"/{seed}/text.txt"}
        with store.lock():
            store.write_suite({"name": "mine", "model_name": "minilm", "protocol": protocol})
            store.write_cell(cell("s", "talr", seed, 0.5, recipe=recipe()))
    assert read(tmp_path / "a", tmp_path / "b") == (["talr"], [])


@pytest.mark.parametrize(("rows", "names"), [("new", {"s"}), ("old", {"s", "s (b)"})])
def test_failed_cells_do_not_say_what_a_scenario_is(
    tmp_path: Path, rows: str, names: set[str]
) -> None:
    stores = [Store(tmp_path / name) for name in "ab"]
    old, new, of_second = (recipe(tasks={"x": {"digest": key}}) for key in ("old", "new", rows))
    for store, cells in zip(
        stores,
        (
            [
                cell("s", "ewc", 0, 0.5, status="failed", reason="r", recipe=old),
                cell("s", "vanilla", 0, 0.5, recipe=new),
            ],
            [cell("s", "vanilla", 1, 0.5, recipe=of_second)],
        ),
        strict=True,
    ):
        with store.lock():
            store.write_suite({"name": "mine", "protocol": {}})
            for each in cells:
                store.write_cell(each)
    read_cells, _, _ = read_runs(stores)
    assert {each.scenario for each in read_cells if each.status == "ok"} == names


def test_what_a_damaged_run_does_not_say_does_not_differ(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    (second / "suite.json").write_text("{")
    (note,) = read(first, second)[1]
    assert note.endswith("cannot be read, so its question, looks and protocol are unknown.")


def test_seeds_of_the_tuning_are_noted(tmp_path: Path) -> None:
    search = {"trials": 4, "epochs": 8.0, "seconds": 9.0}
    store = Store(make_run(tmp_path / "a"))
    with store.lock():
        for seed in (3, 7):
            tuned = cell("one", "lwf", seed, 0.7)
            tuned = tuned.model_copy(update={"search": {**search, "seeds": [7, 8]}})
            store.write_cell(tuned)
    assert read(tmp_path / "a")[1] == [
        "lwf: its settings were tuned on seeds that are shown here (7), so its scores on them are "
        "too good by chance."
    ]


def test_tuning_on_the_reported_rows_is_noted(tmp_path: Path) -> None:
    search = {"trials": 4, "epochs": 8.0, "seconds": 9.0, "on_reported_rows": True}
    store = Store(make_run(tmp_path / "a"))
    with store.lock():
        store.write_cell(cell("one", "lwf", 3, 0.7).model_copy(update={"search": search}))
    (note,) = read(tmp_path / "a")[1]
    assert note == "lwf: its settings were tuned on the reported rows, so its scores are too good."


def test_other_questions_and_looks_are_noted(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", better=0.0)
    store = Store(second)
    with store.lock():
        plan = {"questions": [{"scores": ["p_s"]}], "looks": [[3, 6]]}
        store.write_suite({**store.read_suite(), **plan})
    assert read(first, second)[1] == [
        "The questions of these runs differ; the verdicts are for those of a.",
        "The looks of these runs differ; the verdicts are for those of a.",
    ]


def test_only_methods_and_scenarios_with_equal_settings_are_pooled(tmp_path: Path) -> None:
    def run(name: str, seed: int, task: str, importance: float) -> Path:
        store = Store(tmp_path / name)
        recipe = {"scenario": {"tasks": [task, "b"]}}
        with store.lock():
            store.write_suite({"name": "mine", "protocol": {"model": "tiny"}})
            for method, own in (("vanilla", {}), ("e", {"importance": importance})):
                settings = {"method": own}
                store.write_cell(cell("s", method, seed, 0.5, settings=settings, recipe=recipe))
        return store.out

    def pooled(*runs: Path) -> tuple[list[tuple[str, str, int]], list[str]]:
        cells, notes, _ = read_runs([Store(run) for run in runs])
        rows = gather(cells).tables["means"][["scenario", "method", "seeds"]]
        return sorted(tuple(row) for row in rows.itertuples(index=False)), notes

    first = run("a", 0, "a", 1.0)
    assert pooled(first, run("b", 1, "a", 1.0)) == ([("s", "e", 2), ("s", "vanilla", 2)], [])
    rows, notes = pooled(first, run("c", 1, "a", 2.0))
    assert rows == [("s", "e", 1), ("s", "e (c)", 1), ("s", "vanilla", 2)]
    assert notes == [
        "e in c has other settings or code than in earlier runs: importance = 1.0, now 2.0."
    ]
    rows, notes = pooled(first, run("d", 1, "x", 1.0))
    assert rows == [
        ("s", "e", 1), ("s", "vanilla", 1), ("s (d)", "e", 1), ("s (d)", "vanilla", 1),
    ]  # fmt: skip
    assert notes[0].startswith("s in d has other tasks or settings than in earlier runs: ")
    rows, _ = pooled(first, run("e", 1, "x", 2.0))
    assert rows == [
        ("s", "e", 1), ("s", "vanilla", 1), ("s (e)", "e (e)", 1), ("s (e)", "vanilla", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "method", "model", "note"),
    [
        ({}, "talr", "tiny", ""),
        ({"corpus": {"file": "d"}}, "talr", "tiny", ""),  # it reads none
        ({"method": {"source": "d"}}, "talr (b)", "tiny", "talr in b has other settings or code"),
        ({"method": {"version": 2}}, "talr (b)", "tiny", "talr in b has other settings or code"),
        ({"version": 5}, "talr (b)", "tiny (b)", "b was run with a clbench version that trains"),
        ({"model": {"files": {"w": "d"}}}, "talr (b)", "tiny (b)", "b was run with a different mo"),
        ({"templates": {"a": "d"}}, "talr", "tiny", "s in b has other tasks or settings"),
    ],
)
def test_only_seeds_that_could_share_a_run_folder_are_pooled(
    tmp_path: Path, changes: dict[str, Any], method: str, model: str, note: str
) -> None:
    stores = [Store(tmp_path / name) for name in "ab"]
    for seed, (store, more) in enumerate(zip(stores, ({}, changes), strict=True)):
        with store.lock():
            store.write_suite({"name": "mine", "protocol": {"model": "tiny"}})
            store.write_cell(cell("s", "talr", seed, 0.5, recipe=recipe(**more)))
    cells, notes, _ = read_runs(stores)
    assert [(c.baseline, c.model) for c in cells] == [("talr", "tiny"), (method, model)]
    assert [line[: len(note)] for line in notes] == [note] * bool(note)


def test_a_setting_that_was_added_since_is_its_default(tmp_path: Path) -> None:
    def run(name: str, protocol: dict[str, Any], **own: Any) -> Path:
        store = Store(tmp_path / name)
        with store.lock():
            store.write_suite({"name": "mine", "protocol": {"model": "tiny", **protocol}})
            settings = {"method": own}
            store.write_cell(cell("s", "ewc", 0, 0.5, settings=settings))
        return store.out

    default = METHODS.get("ewc")().settings()
    first = run("a", {}, importance=default["importance"])
    _, notes = read(first, run("b", {"subset": "fixed", "betas": [0.9, 0.999]}, **default))
    assert notes == []
    _, notes = read(first, run("c", {"subset": "seed"}, **{**default, "importance": 7.0}))
    assert notes[0] == (
        "ewc in c has other settings or code than in earlier runs: importance = "
        f"{default['importance']}, now 7.0."
    )
    assert "(subset: fixed in a, seed in c)" in notes[1]


def test_sweeps_of_two_runs_keep_their_points_apart(tmp_path: Path) -> None:
    def run(name: str, importance: float) -> Path:
        store = Store(tmp_path / name)
        with store.lock():
            store.write_suite({"name": "mine", "protocol": {"model": "tiny"}})
            for seed, point, own in ((0, "ewc", importance), (0, "ewc-9", 9.0)):
                settings = {"method": {"importance": own}}
                store.write_cell(cell("s", point, seed, 0.5, settings=settings, family="ewc"))
        return store.out

    cells, *_ = read_runs([Store(run("a", 1.0)), Store(run("b", 2.0))])
    assert sorted((cell.family, cell.baseline) for cell in cells) == [
        ("ewc", "ewc"), ("ewc", "ewc-9"), ("ewc (b)", "ewc (b)"), ("ewc (b)", "ewc-9 (b)"),
    ]  # fmt: skip


def test_only_cells_whose_curves_are_shown_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(make_run(tmp_path / "run"))
    with store.lock():
        for number in range(8):
            store.write_cell(cell(f"more{number}", "vanilla", 0, 0.5))
    cells, *_ = read_runs([store])
    assert all(cell.stages[0].curves for cell in cells if cell.stages)
    monkeypatch.setattr("clbench.report.runs.MOST_DETAILS", 2)
    cells, *_ = read_runs([store])
    with_curves = {cell.scenario for cell in cells if cell.stages and cell.stages[0].curves}
    assert with_curves == {f"more{n}" for n in range(6)}
    assert len(cells) == 24


def test_a_run_without_cells_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    with pytest.raises(RunFolderError, match="has no finished cell yet"):
        read(tmp_path)
