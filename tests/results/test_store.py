from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from handmade import Asked, Scenario, failed, pair

from clbench.errors import RunFolderError
from clbench.results.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "run").lock() as made:
        yield made


def other_process(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    )


def test_cells_come_back_in_the_order_of_the_suite(store: Store) -> None:
    store.write_suite(
        {"name": "s", "methods": ["vanilla", "ewc"], "scenario": [{"name": "sst2-mrpc"}]}
    )
    for cell in (pair("ewc", 0), pair("zeta", 0), pair("vanilla", 10), pair("vanilla", 2)):
        store.write_cell(cell)
    keys = [(cell.baseline, cell.seed) for cell in store.read().cells]
    assert keys == [("vanilla", 2), ("vanilla", 10), ("ewc", 0), ("zeta", 0)]


def test_reading_makes_nothing(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").read().cells == []
    assert Store(tmp_path / "none").finished([Asked()]) == set()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "empty"),
        (pair().to_json().encode()[:200], "broken off or no JSON"),
        (b"\xff\xfe\x00", "broken off or no JSON"),
        (b'{"a": 1}', "not written by clbench"),
        (b"[" * 100_000, "broken off or no JSON"),
        (b'{"schema_version": 1, "key": 3}', "key: must be a text in quotes, got 3"),
        (pair("ewc").to_json().encode(), "holds the cell 'sst2-mrpc--ewc--seed0'"),
    ],
)
def test_a_broken_file_is_named_kept_aside_and_run_again(
    store: Store, content: bytes, fault: str
) -> None:
    store.write_cell(pair("vanilla", 1))
    broken = store.cells / "sst2-mrpc--vanilla--seed0.json"
    broken.write_bytes(content)
    looked = store.read()
    assert len(looked.cells) == 1
    assert looked.broken_lines([broken.stem]) == [
        f"{broken} is no finished cell ({fault}). It will be run again."
    ]
    assert looked.broken_lines([]) == [f"{broken} is no finished cell ({fault}). It is left out."]
    store.read(set_aside=["another"])
    assert broken.exists()
    moved = store.read(set_aside=[broken.stem])
    assert moved.broken_lines([broken.stem]) == [
        f"{broken} is no finished cell ({fault}); kept as cells/broken/{broken.name}. "
        "It will be run again."
    ]
    assert not broken.exists()
    assert (store.cells / "broken" / broken.name).read_bytes() == content
    assert store.read().broken == []
    assert store.finished([Asked()]) == set()


def test_a_second_broken_file_of_one_name_does_not_replace_the_first(store: Store) -> None:
    path = store.cells / "x.json"
    for content in ("one", "two"):
        path.write_text(content)
        store.read(set_aside=["x"])
    kept = sorted((store.cells / "broken").iterdir())
    assert [(file.name, file.read_text()) for file in kept] == [
        ("x.2.json", "two"),
        ("x.json", "one"),
    ]


def test_a_newer_file_is_not_run_over(store: Store) -> None:
    newer = {**json.loads(pair().to_json()), "schema_version": 2, "extra": 1}
    path = store.cells / "sst2-mrpc--vanilla--seed0.json"
    path.write_text(json.dumps(newer))
    with pytest.raises(RunFolderError, match=r"newer clbench \(schema 2; this one reads 1\)"):
        store.read(set_aside=[path.stem])
    assert path.exists()


def test_failed_cells_are_not_finished(store: Store) -> None:
    store.write_cell(failed())
    assert store.finished([Asked()]) == set()
    store.write_cell(pair())
    assert store.finished([Asked()]) == {"sst2-mrpc--vanilla--seed0"}


def test_another_setting_is_named(store: Store) -> None:
    store.write_cell(pair())
    asked = Asked(fingerprint="f1", changes={"protocol": {"epochs": 1}})
    with pytest.raises(RunFolderError) as caught:
        store.finished([asked])
    assert str(caught.value) == (
        f"{store.cells / 'sst2-mrpc--vanilla--seed0.json'} was run with epochs = 3, now 1. "
        "Take another --out, or --replace to run again and keep the old files in "
        "cells/replaced/."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"settings": {"importance": 675.0}}}, "with importance = not set, now 675.0."),
        ({"method": {"name": "ewc"}}, "with name = 'vanilla', now 'ewc'."),
        ({"method": {"source": "d"}}, "with another source of the method."),
        ({"model": {"files": {}}}, "with another model or other weights."),
        ({"tasks": {"glue/mrpc": {"digest": "z"}}}, "with other rows of glue/mrpc."),
        ({"files": {"split": "e"}}, "with other contents of the file of its split."),
        ({"protocol": {"limit": 100}}, "with limit = None, now 100."),
        ({}, "with other settings."),
    ],
)
def test_what_differs_is_said_in_words(
    store: Store, changes: dict[str, dict[str, object]], words: str
) -> None:
    store.write_cell(pair())
    with pytest.raises(RunFolderError, match=re.escape(f".json was run {words}")):
        store.finished([Asked(fingerprint="f1", changes=changes)])


def test_a_folder_holds_one_protocol(store: Store) -> None:
    store.write_cell(pair("vanilla"))
    store.write_cell(pair("vanilla", 1))
    asked = Asked("sst2-mrpc--ewc--seed0", "f9", changes={"protocol": {"limit": 100}})
    with pytest.raises(RunFolderError, match=r"limit = None, now 100 \(1 more cell likewise\)"):
        store.finished([asked])
    other = {"method": {"name": "ewc", "settings": {"importance": 1.0}}}
    assert store.finished([Asked("sst2-mrpc--ewc--seed0", "f9", changes=other)]) == set()


def test_scenarios_of_one_run_share_the_protocol_but_not_the_tasks(store: Store) -> None:
    store.write_cell(pair("vanilla"))
    there = Scenario("qnli-rte", settings={"tasks": ["glue/qnli", "glue/rte"]})
    changes = {
        "tasks": {"glue/qnli": {"digest": "q"}},
        "scenario": {"name": "qnli-rte"},
        "protocol": {"task_epochs": {"glue/qnli": 5}},
    }
    asked = Asked("qnli-rte--vanilla--seed0", "f9", there, changes=changes)
    assert store.finished([asked]) == set()
    changes["protocol"] = {"lr": 1e-4}
    with pytest.raises(RunFolderError, match=r"lr = 2e-05, now 0\.0001"):
        store.finished([Asked("qnli-rte--vanilla--seed0", "f9", there, changes=changes)])


def test_replacing_keeps_the_old_files(store: Store) -> None:
    store.write_cell(pair("vanilla"))
    store.write_cell(pair("ewc"))
    asked = [Asked(fingerprint="f1", changes={"protocol": {"epochs": 1}})]
    assert store.replace(asked) == ["sst2-mrpc--ewc--seed0", "sst2-mrpc--vanilla--seed0"]
    assert store.read().cells == []
    assert store.finished(asked) == set()
    assert len(list((store.cells / "replaced").iterdir())) == 2


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from clbench.results.store import Store\n"
        "with Store(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"
    )
    process = other_process(code, str(tmp_path))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        text = rf"in use by another clbench process \(pid {process.pid} on .* since "
        with pytest.raises(RunFolderError, match=text), Store(tmp_path).lock():
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Store(tmp_path).lock():
        pass


def test_the_lock_is_given_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), Store(tmp_path).lock():
        raise ValueError("inside")
    with Store(tmp_path).lock():
        pass


KILLED_AT_EVERY_LINE = """
import json, os, signal, sys
from pathlib import Path
from clbench import cache
from clbench.results import folder, store
from handmade import pair

big = ["x" * 100] * 2000
writers = {Path(module.__file__) for module in (cache, folder, store)}
out = store.Store(Path(sys.argv[1]))


def rewrite(line):
    # In a process of its own, which dies before the line-th line of the code that writes files.
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = line

    def trace(frame, event, argument):
        nonlocal left
        if Path(frame.f_code.co_filename) not in writers:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    out.write_cell(pair(notes=["new", *big]))
    os._exit(0)


with out.lock():
    line, code = 0, -signal.SIGKILL
    while code:
        out.write_cell(pair(notes=["old", *big]))
        line += 1
        code = rewrite(line)
        found = out.read()
        parts = list(out.cells.glob(".*.part"))
        sizes = [part.stat().st_size for part in parts]
        notes = [(cell.notes[0], len(cell.notes)) for cell in found.cells]
        print(json.dumps([code, notes, len(found.broken), sizes]), flush=True)
        for part in parts[1:]:
            part.unlink()
"""


def test_killed_at_any_line_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_LINE, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, *_ in kills] == [-signal.SIGKILL] * (len(kills) - 1) + [0]
    assert [broken for _, _, broken, _ in kills] == [0] * len(kills)
    found = [notes for _, notes, _, _ in kills]
    old, new = [["old", 2001]], [["new", 2001]]
    assert found == [old] * found.count(old) + [new] * found.count(new)
    assert old in found
    assert new in found[:-1], "no kill fell after the new file was in its place"
    assert any(sizes for *_, sizes in kills), "no kill fell into the writing of the file"
    assert list(tmp_path.rglob("*.part"))
    with Store(tmp_path).lock():
        assert list(tmp_path.rglob("*.part")) == []


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(RunFolderError, match=r"is a file, not a folder\. Take another --out\."):
        Store(path).check()
    with pytest.raises(RunFolderError, match="cannot be written"), Store(path / "in").lock():
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match="Permission denied"), Store(tmp_path / "x").lock():
        pass


def test_a_full_disk_is_told_and_leaves_the_old_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_cell(pair(notes=["old"]))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="cannot be written: No space left on device"):
        store.write_cell(pair(notes=["new"]))
    assert store.read().cells[0].notes == ["old"]
    assert list(store.cells.glob("*.part")) == []


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
    assert store.read_suite()["methods"] == ["b"]
    with pytest.raises(RunFolderError, match="holds a run of the suite 'quick', not of 'mine'"):
        store.write_suite({"name": "mine"})


def test_a_broken_suite_file_does_not_stop_a_run(store: Store) -> None:
    store.write_cell(pair())
    store.suite_path.write_text("{")
    assert len(store.read().cells) == 1
    store.check()
    store.write_suite({"name": "quick"})


def test_no_run_to_report(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"There is no folder .*none"):
        Store(tmp_path / "none").require()
    with pytest.raises(RunFolderError, match="it has no folder cells/"):
        Store(tmp_path).require()


def test_an_error_before_the_run_has_begun_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "results" / "quick"

    def run(*, begun: bool) -> None:
        with Store(out).lock() as store:
            (out / "scenarios").mkdir()
            if begun:
                store.write_suite({"name": "quick"})
            raise ValueError("bad data")

    with pytest.raises(ValueError, match="bad data"):
        run(begun=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="bad data"):
        run(begun=True)
    assert Store(out).suite_path.exists()


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("mine")
    with pytest.raises(ValueError, match="bad data"), Store(tmp_path).lock():
        raise ValueError("bad data")
    assert (tmp_path / "log.txt").read_text() == "mine"


def test_half_written_folders_are_cleaned_too(tmp_path: Path) -> None:
    part = tmp_path / "stages" / ".abc.part"
    part.mkdir(parents=True)
    (part / "model.safetensors").write_text("x")
    with Store(tmp_path).lock():
        assert not part.exists()


def test_cells_without_a_recipe_are_compared_by_fingerprint_only(store: Store) -> None:
    store.write_cell(pair(recipe={}))
    assert store.finished([Asked("sst2-mrpc--ewc--seed0", "f9")]) == set()
    with pytest.raises(RunFolderError, match="was run with other settings"):
        store.finished([Asked(fingerprint="f1")])
