from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.handmade import PlannedCell, failed, pair, reference, stage, three

from clbench.core.errors import RunFolderError
from clbench.results.score_tables import scores_frame, to_csv
from clbench.results.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "run").lock() as store:
        yield store


def test_cells_are_read_in_the_order_of_the_suite(store: Store) -> None:
    store.write_suite(
        {"name": "s", "methods": ["vanilla", "ewc"], "scenario": [{"name": "sst2-mrpc"}]}
    )
    for cell in (pair("ewc", 0), pair("zeta", 0), pair("vanilla", 10), pair("vanilla", 2)):
        store.write_cell(cell)
    keys = [(cell.baseline, cell.seed) for cell in store.read().cells]
    assert keys == [("vanilla", 2), ("vanilla", 10), ("ewc", 0), ("zeta", 0)]


def test_reading_creates_nothing(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").read().cells == []
    assert Store(tmp_path / "none").finished([PlannedCell()]) == set()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "truncated or not JSON"),
        (pair().to_json().encode()[:200], "truncated or not JSON"),
        (b"\xff\xfe\x00", "truncated or not JSON"),
        (b"[" * 100_000, "truncated or not JSON"),
        (b'{"a": 1}', "key: is missing"),
        (b'{"schema_version": 1, "key": 3}', "key: must be a text in quotes, got 3"),
        (pair("ewc").to_json().encode(), "holds the cell 'sst2-mrpc--ewc--seed0'"),
    ],
)
def test_a_broken_file_is_named_moved_and_run_again(
    store: Store, content: bytes, error: str
) -> None:
    store.write_cell(pair("vanilla", 1))
    broken = store.cells / "sst2-mrpc--vanilla--seed0.json"
    broken.write_bytes(content)
    before = store.read()
    assert len(before.cells) == 1
    assert before.broken_lines([broken.stem]) == [
        f"{broken} is not a valid cell file ({error}). It will be run again."
    ]
    assert before.broken_lines([]) == [
        f"{broken} is not a valid cell file ({error}). It is left out."
    ]
    store.read(set_aside=["another"])
    assert broken.exists()
    after = store.read(set_aside=[broken.stem])
    assert after.broken_lines([broken.stem]) == [
        f"{broken} is not a valid cell file ({error}); moved to cells/broken/{broken.name}. "
        "It will be run again."
    ]
    assert not broken.exists()
    assert (store.cells / "broken" / broken.name).read_bytes() == content
    assert store.read().broken == []
    assert store.finished([PlannedCell()]) == set()


def test_a_second_broken_file_of_one_name_does_not_replace_the_first(store: Store) -> None:
    path = store.cells / "x.json"
    for content in ("one", "two"):
        path.write_text(content)
        store.read(set_aside=["x"])
    files = sorted((store.cells / "broken").iterdir())
    assert [(file.name, file.read_text()) for file in files] == [
        ("x.2.json", "two"),
        ("x.json", "one"),
    ]


def test_a_file_of_a_newer_version_stops_the_run(store: Store) -> None:
    newer = {**json.loads(pair().to_json()), "schema_version": 2, "extra": 1}
    path = store.cells / "sst2-mrpc--vanilla--seed0.json"
    path.write_text(json.dumps(newer))
    with pytest.raises(RunFolderError, match=r"newer clbench \(schema 2; this one reads 1\)"):
        store.read(set_aside=[path.stem])
    assert path.exists()


def test_failed_cells_are_not_finished(store: Store) -> None:
    store.write_cell(failed())
    assert store.finished([PlannedCell()]) == set()
    store.write_cell(pair())
    assert store.finished([PlannedCell()]) == {"sst2-mrpc--vanilla--seed0"}


def test_a_conflict_names_the_file_the_difference_and_the_remedy(store: Store) -> None:
    store.write_cell(pair())
    asked = PlannedCell(fingerprint="f1", changes={"protocol": {"epochs": 1}})
    with pytest.raises(RunFolderError) as caught:
        store.finished([asked])
    assert str(caught.value) == (
        f"{store.cells / 'sst2-mrpc--vanilla--seed0.json'} was run with epochs = 3, now 1. "
        "Choose another out, or replace=True to run again and keep the old files in "
        "cells/replaced/."
    )


def test_replace_moves_conflicting_cells(store: Store) -> None:
    store.write_cell(pair("vanilla"))
    store.write_cell(pair("ewc"))
    asked = [PlannedCell(fingerprint="f1", changes={"protocol": {"epochs": 1}})]
    assert store.replace(asked) == ["sst2-mrpc--ewc--seed0", "sst2-mrpc--vanilla--seed0"]
    assert store.read().cells == []
    assert store.finished(asked) == set()
    assert len(list((store.cells / "replaced").iterdir())) == 2


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(RunFolderError, match=r"is a file, not a folder\. Choose another out\."):
        Store(path).check()
    with pytest.raises(RunFolderError, match="cannot be written"), Store(path / "in").lock():
        pass


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "suite.json").write_text('{"theirs": true}')
    with pytest.raises(RunFolderError, match="not written by clbench"):
        Store(tmp_path / "a").check()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "scores.csv").write_text("x")
    with pytest.raises(RunFolderError, match="belongs to no run"):
        Store(tmp_path / "b").check()


def test_a_folder_holds_one_suite(store: Store) -> None:
    store.write_suite({"name": "quick", "methods": ["a"]})
    store.write_suite({"name": "quick", "methods": ["b"]})
    with pytest.raises(RunFolderError, match="holds a run of the suite 'quick', not of 'mine'"):
        store.write_suite({"name": "mine"})


def test_a_damaged_suite_file_is_replaced(store: Store) -> None:
    for key, value in (("plugins", []), ("task", "x"), ("baseline", [1]), ("seeds", {})):
        store.write_suite({"name": "quick", key: {"a": {}} if key != "seeds" else [1]})
        path = store.suite_path
        content = json.loads(path.read_text())
        content["suite"][key] = value
        path.write_text(json.dumps(content))
        store.write_suite({"name": "quick", "methods": ["a"]})
        assert store.read_suite()["methods"] == ["a"]


def test_a_suite_file_keeps_what_earlier_runs_had_besides(store: Store) -> None:
    first: dict[str, Any] = {
        "name": "quick",
        "methods": ["vanilla", "ewc"],
        "seeds": [0, 1],
        "scenario": [{"name": "a", "note": "old"}, {"name": "b"}],
        "baseline": {"vanilla": {"settings": {}}, "ewc": {"settings": {"importance": 1.0}}},
    }
    second: dict[str, Any] = {
        "name": "quick",
        "methods": ["lwf"],
        "seeds": [5, 0],
        "scenario": [{"name": "a", "note": "new"}],
        "baseline": {"lwf": {"settings": {"weight": 2.0}}},
    }
    store.write_suite(first)
    store.write_suite(second)
    suite = store.read_suite()
    assert suite["methods"] == ["vanilla", "ewc", "lwf"]
    assert suite["seeds"] == [0, 1, 5]
    assert suite["scenario"] == [{"name": "a", "note": "new"}, {"name": "b"}]
    assert suite["baseline"] == {**first["baseline"], **second["baseline"]}
    store.write_suite({"name": "quick", "methods": ["lwf", "ewc", "vanilla", "si"]})
    assert store.read_suite()["methods"] == ["lwf", "ewc", "vanilla", "si"]


def test_a_broken_suite_file_does_not_stop_a_run(store: Store) -> None:
    store.write_cell(pair())
    store.suite_path.write_text("{")
    assert len(store.read().cells) == 1
    store.check()
    with pytest.raises(RunFolderError, match="so the looks of its run are unknown"):
        store.check(looks=(3, 6))
    store.write_suite({"name": "quick"})
    assert (store.out / "suite.broken.json").read_text() == "{"
    assert store.read_suite() == {"name": "quick", "more_seeds": False}


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"There is no folder .*none"):
        Store(tmp_path / "none").require()
    with pytest.raises(RunFolderError, match="it has no folder cells/"):
        Store(tmp_path).require()


def test_links_and_folders_among_the_cells_are_named(store: Store, tmp_path: Path) -> None:
    for name, target in (("nothing", tmp_path / "none"), ("zero", Path("/dev/zero"))):
        (store.cells / f"{name}.json").symlink_to(target)
    (store.cells / "loop.json").symlink_to(store.cells / "loop.json")
    (store.cells / "folder.json").mkdir()
    content = store.read(set_aside={"loop"})
    assert [file.path.stem for file in content.broken] == ["folder", "loop", "nothing", "zero"]
    assert [file.error for file in content.broken] == [
        "Is a directory",
        "Too many levels of symbolic links",
        "No such file or directory",
        "it is not a regular file",
    ]


def test_of_many_broken_files_a_few_are_named(store: Store) -> None:
    for number in range(100):
        (store.cells / f"x{number:03}.json").touch()
    lines = store.read().broken_lines([])
    assert len(lines) == 9
    assert lines[0].startswith(f"{store.cells / 'x000.json'} is not a valid cell file")
    assert lines[-1] == "And 92 more files like these."


def test_a_pipe_is_never_read(store: Store) -> None:
    for path in (store.suite_path, store.cells / "a.json", store.scores_path):
        os.mkfifo(path)
    assert store.read_suite() == {}
    assert [file.error for file in store.read().broken] == ["it is not a regular file"]
    with pytest.raises(RunFolderError, match="is not a file"):
        store.check("quick")


@pytest.mark.parametrize(
    "suite",
    [[], {"scenario": [1]}, {"scenario": [{"name": [1]}]}, {"methods": "a"}, {"protocol": []}],
)
def test_a_suite_file_of_other_types_counts_as_none(store: Store, suite: object) -> None:
    store.suite_path.write_text(json.dumps({"format": "clbench-run", "suite": suite}))
    assert store.read_suite() == {}
    assert store.read().cells == []


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "suite.json").mkdir()
    with pytest.raises(RunFolderError, match="is not a file"):
        Store(tmp_path).check("quick")


def test_references_behind_the_table_have_the_numbers_of_stages(store: Store) -> None:
    tasks = ["pretraining", "glue/sst2", "glue/mrpc"]  # the pretraining has no stage
    store.write_cell(three(tasks=tasks, stages=[stage("glue/sst2"), stage("glue/mrpc")]))
    changes = {"tasks": tasks, "R": [[None, None, 0.75]], "metrics": [[None, None, None]]}
    alone = reference(1, 0.75).model_copy(update=changes)
    path = store.write_cell(alone)
    frame = scores_frame(store.read().cells)
    assert frame["intransigence"].tolist() == pytest.approx([0.05])
    store.write_scores(to_csv(frame))
    assert store.read().missing == []
    path.unlink()
    assert store.read().missing == [alone.key]
