"""What a board reads: folders, grades, bad submissions, and the frame of all cells."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from helpers.boards import make_entry, manifest, verify_entry

import clbench.board
from clbench.board.entries import FIELDS, PLACES, read_entries
from clbench.board.manifest import UNVERIFIED
from clbench.core.errors import RunFolderError
from clbench.results.score_tables import load_run
from clbench.results.store import Store

ROOT = Path(__file__).parents[2]


def test_folders_are_entries_or_hold_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_entry(tmp_path / "all" / name)
    (tmp_path / "all" / "notes").mkdir()
    make_entry(tmp_path / "all" / ".c.part")  # left by a killed process
    lone = make_entry(tmp_path / "lone")
    entries, problems = read_entries([tmp_path / "all", lone, tmp_path / "all" / "a"])
    assert [each.name for each in entries] == ["a", "b", "lone"]
    assert problems == []
    twin = make_entry(tmp_path / "other" / "lone")
    entries, _ = read_entries([lone, twin])
    names = [each.name for each in entries]
    assert len(set(names)) == 2
    assert names[1] == "other/lone"


def test_the_frame_has_a_row_for_each_cell(tmp_path: Path) -> None:
    first = make_entry(tmp_path / "first", search={"trials": 3, "epochs": 9.0, "seconds": 1.0})
    verify_entry(make_entry(tmp_path / "second", suite="other"), "rerun")
    frame = clbench.board.load([first, tmp_path / "second"])
    assert len(frame) == 2 * 3 * 4
    assert list(frame.columns[: len(FIELDS)]) == list(FIELDS)
    assert frame.groupby("submission")["grade"].first().to_dict() == {
        "first": "unverified", "second": "rerun",
    }  # fmt: skip
    assert set(frame["trials"]) == {0, 3}
    own = frame[frame["submission"] == "first"].drop(columns=list(FIELDS))
    pd.testing.assert_frame_equal(own, load_run(first).frame, check_like=True)
    pd.testing.assert_frame_equal(clbench.board.load(str(tmp_path)), frame)


def test_a_clone_has_a_place_for_submissions_which_may_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    name = "results/community/replay-20/manifest.json"
    ignored = subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", name], check=False)
    assert ignored.returncode != 0  # or nobody could add a submission
    monkeypatch.chdir(tmp_path)
    for place in PLACES:
        Path(place).mkdir(parents=True)
        shutil.copy(ROOT / PLACES[1] / "README.md", place)
    make_entry(tmp_path / PLACES[0] / "run")
    assert {*clbench.board.load()["submission"]} == {"run"}
    with pytest.raises(RunFolderError, match=r"community holds no submission and no run\. Give an"):
        read_entries([PLACES[1]])
    make_entry(tmp_path / PLACES[1] / "other")
    assert {*clbench.board.load()["submission"]} == {"run", "other"}
    assert not [warning for warning in recwarn if "is left out" in str(warning.message)]
    assert [each.name for each in read_entries([PLACES[1]])[0]] == ["other"]


def test_without_folders_outside_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match=r"^There is no run in results/.* Give folders\.$"):
        clbench.board.load()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"grade": "best"}', '{"grade": 3}'])
def test_a_strange_verification_counts_as_none(tmp_path: Path, text: str) -> None:
    folder = make_entry(tmp_path / "run", files={"verified.json": text})
    assert read_entries([folder])[0][0].grade == "unverified"


def test_a_verification_is_that_of_its_files(tmp_path: Path) -> None:
    folder = verify_entry(make_entry(tmp_path / "run"), "recomputed")
    (entry,) = read_entries([folder])[0]
    assert entry.manifest is not None
    assert (entry.grade, entry.manifest.name) == ("recomputed", "A title")
    text = (folder / "scores.csv").read_text() if (folder / "scores.csv").exists() else ""
    (folder / "scores.csv").write_text(text + "changed since")
    assert read_entries([folder])[0][0].grade == "unverified"
    for known in ("0" * 64, None):
        folder = verify_entry(make_entry(tmp_path / f"other-{known}"), "rerun", manifest=known)
        assert read_entries([folder])[0][0].grade == "unverified"
    run = make_entry(tmp_path / "run-alone", files={"verified.json": {"grade": "rerun"}})
    assert read_entries([run])[0][0].grade == "unverified"


def test_bad_submissions_are_a_line_each(tmp_path: Path) -> None:
    every = tmp_path / "all"
    make_entry(every / "good")
    make_entry(every / "no-json", files={"manifest.json": "{"})
    make_entry(every / "bad-url", files={"manifest.json": manifest(url="javascript:alert(1)")})
    make_entry(every / "no-suite", files={"suite.json": "nothing"})
    damaged = make_entry(every / "damaged")
    (damaged / "cells.tar.xz").write_bytes(b"no archive")
    make_entry(every / "failed", status="failed", reason="why")
    (every / "empty").mkdir()
    (every / "empty" / "scores.csv").touch()
    partly = make_entry(every / "partly")
    (partly / "cells").mkdir()
    (partly / "cells" / "pair--ewc--seed9.json").write_text("{")
    entries, problems = read_entries([every, tmp_path / "none"])
    assert [each.name.rpartition("/")[2] for each in entries] == ["good", "partly"]
    lines = {line.partition(" ")[0].rpartition("/")[2].rstrip(":"): line for line in problems}
    assert len(problems) == len(lines) == 8
    for name, part in {
        "bad-url": "url",
        "damaged": "is damaged",
        "empty": "holds no run",
        "failed": "has no finished cell",
        "no-json": "is not complete JSON",
        "no-suite": "suite.json is missing or cannot be read",
        "partly": "pair--ewc--seed9.json is not a valid cell file",
        "none": "There is no folder",
    }.items():
        assert part in lines[name], lines[name]
        assert "\n" not in lines[name]
    with pytest.warns(UserWarning, match="is left out"):
        clbench.board.load(every)
    with pytest.raises(RunFolderError, match="There is no folder"):
        read_entries([tmp_path / "none"])
    with pytest.raises(RunFolderError, match="Name one or more"):
        read_entries([])


@pytest.mark.parametrize(
    ("commands", "command"),
    [
        ([["clbench", "run", "mine"]], "clbench run mine"),
        (
            [["clbench", "run", "mine", "--seeds", seeds] for seeds in ("0", "0,1")],
            "clbench run mine --seeds 0,1",
        ),
        (
            [
                ["clbench", "run", "mine", "--data", "DIR", "--methods", "a/ewc.toml,vanilla"],
                ["clbench", "run", "mine", "--methods", "replay", "--data", "DIR"],
            ],
            "clbench run mine --data DIR --methods a/ewc.toml,vanilla,replay",
        ),
        (
            [["clbench", "run", "mine"], ["clbench", "run", "mine", "--methods", "a/ewc.toml"]],
            "clbench run mine --methods a/ewc.toml,vanilla,replay",
        ),
        ([], "clbench run mine --scenarios pair --methods vanilla,ewc,replay --seeds 0,1,2,3"),
        ([["rm", "-r", "."], ["clbench", "run", "mine"]], "clbench run mine"),
        ([["clbench", "run", "mine"], ["rm", "-r", "."]], "clbench run mine"),
    ],
)  # fmt: skip
def test_one_command_runs_all_of_it_again(
    tmp_path: Path, commands: list[list[str]], command: str
) -> None:
    folder = make_entry(tmp_path / "run", suite_fields={"commands": commands})
    assert read_entries([folder])[0][0].command() == command


def test_trials_and_smoke_runs_are_no_results(tmp_path: Path) -> None:
    tuning = make_entry(tmp_path / "tune", protocol={"model": "tiny", "score_on": "tuning"})
    smoke = make_entry(tmp_path / "smoke", protocol={"model": "tiny", "smoke": True})
    entries, _ = read_entries([make_entry(tmp_path / "run"), tuning, smoke])
    assert [each.is_result for each in entries] == [True, False, False]


def test_all_kept_runs_can_be_read() -> None:
    folders = [ROOT / "results" / "reference"]
    entries, problems = read_entries(folders)
    assert problems == []
    assert len(entries) == sum(path.is_dir() for path in folders[0].iterdir())
    for each in entries:
        verified = each.path / "verified.json"
        # A run that was packed again needs `clbench submit` and `clbench verify --write` again.
        kept = json.loads(verified.read_text("utf-8"))["grade"] if verified.exists() else UNVERIFIED
        assert each.grade == kept, each.name
        assert each.command().startswith(("clbench run ", "clbench tune ")), each.name
        assert Store(each.path).read_suite()["name"] == each.suite["name"]
