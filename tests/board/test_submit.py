"""What a submission holds, what stays at home, and what is refused."""

from __future__ import annotations

import getpass
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers.submissions import cells_of

from clbench.board.manifest import facts, read_manifest, read_verified, without_paths
from clbench.board.submission import Outcome
from clbench.board.submit import _named_here, submit
from clbench.board.verify import verify
from clbench.cli.app import main
from clbench.cli.schema import schema_of
from clbench.core.errors import RunFolderError, SettingsError
from clbench.models.locate import local_folder
from clbench.results.archive import extract

QUICK = Path(__file__).parents[2] / "results" / "reference" / "quick"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run as it lies in its folder, with a file for each cell and no manifest."""
    without = shutil.ignore_patterns("manifest.json", "verified.json")
    folder = Path(shutil.copytree(QUICK, tmp_path / "run", ignore=without))
    extract(folder)
    return folder


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text("utf-8"))
    content |= changes
    path.write_text(json.dumps(content), "utf-8")


def some_cell(run: Path) -> Path:
    return run / "cells" / "growing-head--replay--seed1.json"


def test_a_submission_holds_the_run_and_what_it_was_made_with(run: Path, tmp_path: Path) -> None:
    notes = submit(run, "Mine", tmp_path / "out", url="https://example.org", contact="me")
    manifest = read_manifest(tmp_path / "out")
    assert notes == []
    assert (manifest.name, manifest.suite, manifest.url) == ("Mine", "quick", "https://example.org")
    assert {*manifest.files} == {"suite.json", "scores.csv", "cells.tar.xz"}
    (model,) = manifest.models
    assert model.name == "tiny"
    assert {*model.sha256} == {path.name for path in local_folder("tiny").glob("*.safetensors")}
    assert [len(mark) for mark in model.sha256.values()] == [64]
    assert sum(machine.cells for machine in manifest.hardware) == 32
    assert {*manifest.tasks} == {"synthetic/sentiment", "synthetic/acceptability"}
    assert cells_of(tmp_path / "out") == cells_of(run)
    assert facts(cells_of(run))["hardware"] == manifest.hardware
    assert read_verified(tmp_path / "out") == {}
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]
    jsonschema.validate(manifest.model_dump(mode="json"), schema_of("submission"))


def test_equal_runs_give_equal_submissions(run: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        submit(run, "Mine", tmp_path / name)
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "other")
    )
    assert one == other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/bob smith/runs/x", "x"),
        ("../shared/data", "data"),
        ("~/x/y", "y"),
        ("C:\\Users\\bob\\model", "model"),
        ("/srv/a: not found in /home/x/y.csv", "a: not found in y.csv"),
        ("see /home/bob/x.csv, and https://a.b/c/d", "see x.csv, and https://a.b/c/d"),
        ("file:///home/bob/model", "model"),
        ("file:///C:/Users/bob/model", "model"),
        ("see file://localhost/home/bob/x.csv, please", "see x.csv, please"),
        ("glue/cola", "glue/cola"),
        ("p_o / p_s, 1 /5 and/or", "p_o / p_s, 1 /5 and/or"),
        ("synthetic/sentiment+synthetic/acceptability[1]",) * 2,
    ],
)
def test_paths_that_lead_out_keep_their_last_part(text: str, expected: str) -> None:
    assert without_paths({"a": [text, 1, None]}) == {"a": [expected, 1, None]}


def test_paths_of_this_machine_do_not_leave_it(run: Path, tmp_path: Path) -> None:
    edit(some_cell(run), notes=[f"{Path.home()}/secret/rows.csv: 3 rows are blank"])
    content = json.loads((run / "suite.json").read_text("utf-8"))
    content["suite"]["commands"] = [["clbench", "run", "quick", "--data", "/home/bob/data"]]
    (run / "suite.json").write_text(json.dumps(content), "utf-8")
    submit(run, "Mine", tmp_path / "out")
    (cell,) = [c for c in cells_of(tmp_path / "out") if c.key == some_cell(run).stem]
    assert cell.notes == ["rows.csv: 3 rows are blank"]
    assert "/home" not in (tmp_path / "out" / "suite.json").read_text("utf-8")


@pytest.mark.parametrize("who", ["user", "machine"])
def test_a_name_of_this_machine_or_user_is_refused(
    who: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "bobsmith")
    monkeypatch.setattr(socket, "gethostname", lambda: "fermat.example.org")
    edit(some_cell(run), notes=["by bobsmith" if who == "user" else "on fermat"])
    with pytest.raises(RunFolderError, match="names this machine or its user"):
        submit(run, "Mine", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_file_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "root")  # no name to look for, as in containers
    monkeypatch.setattr(socket, "gethostname", lambda: "a1")
    (tmp_path / "empty.txt").write_text("")
    assert _named_here(tmp_path) == []


def test_a_path_that_results_depend_on_is_refused(run: Path, tmp_path: Path) -> None:
    recipe = json.loads(some_cell(run).read_text("utf-8"))["recipe"]
    recipe["method"]["settings"]["rows"] = "/home/bob/rows.txt"
    edit(some_cell(run), recipe=recipe)
    with pytest.raises(RunFolderError, match=r"a setting is a path of this machine \(/home/bob"):
        submit(run, "Mine", tmp_path / "out")


def test_a_run_with_a_gap_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    some_cell(run).unlink()
    (run / "scores.csv").unlink()
    with pytest.raises(RunFolderError, match=r"1 declared cell missing: growing-head--replay--se"):
        submit(run, "Mine", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_run_is_refused(run: Path, tmp_path: Path) -> None:
    some_cell(run).write_text("{")
    with pytest.raises(RunFolderError, match="truncated or not JSON"):
        submit(run, "Mine", tmp_path / "out")
    with pytest.raises(RunFolderError, match="There is no folder"):
        submit(tmp_path / "nowhere", "Mine", tmp_path / "out")


def test_a_folder_that_is_not_empty_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty"):
        submit(run, "Mine", tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name '': is empty"),
        ({"name": "M" * 201}, "name: has more than 200 characters"),
        ({"name": "Mine", "url": "example.org"}, "must begin with http"),
        ({"name": "Mine", "contact": "/home/bob"}, "names a folder of this machine"),
    ],
)
def test_wrong_words_are_refused(
    fields: dict[str, str], message: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        submit(run, out=tmp_path / "out", **fields)


def test_the_commands_write_check_and_grade(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["submit", str(run), "--name", "Mine", "--out", out]) == 0
    assert "clbench verify" in capsys.readouterr().out
    assert main(["verify", out, "--write"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Grade: recomputed"
    content = json.loads((tmp_path / "out" / "verified.json").read_text("utf-8"))
    assert content["grade"] == "recomputed"
    assert read_verified(tmp_path / "out") == content
    assert all(check["holds"] for check in content["checked"])
    assert str(tmp_path) not in json.dumps(content)
    assert main(["verify", out]) == 0  # what a verification leaves is no forgery
    manifest = tmp_path / "out" / "manifest.json"
    text = manifest.read_text("utf-8")
    manifest.write_text(text.replace("Mine", "Ours"), "utf-8")
    assert read_verified(tmp_path / "out") == {}  # it was another submission
    manifest.write_text(text, "utf-8")
    (tmp_path / "out" / "scores.csv").write_text("x")
    capsys.readouterr()
    assert main(["verify", out]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1)[1].startswith("fails: scores.csv is not the file that")
    assert lines[-1] == "Grade: none"
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
    assert main(["verify", str(run)]) == 2
    assert main(["verify", out, "--rerun", "-1"]) == 2


def test_nothing_is_written_into_a_submission(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my run"
    assert main(["submit", str(run), "--name", "Mine", "--out", str(folder)]) == 0
    assert f"clbench verify '{folder}' --rerun" in capsys.readouterr().out  # ready to paste
    table = folder / "scores.csv"
    table.write_text(table.read_text("utf-8") + "\n", "utf-8")
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    for words in (
        ["report", str(folder)],
        ["export", str(folder), "--to", "dataset"],
        ["board", str(folder), "--out", str(folder / "site")],
        ["run", "quick", "--limit", "8", "--replace", "--out", str(folder)],
    ):
        assert main(words) == 2
        assert "is in a submission" in capsys.readouterr().err.splitlines()[-1]
        assert {path: path.read_bytes() for path in folder.rglob("*")} == before
    assert main(["report", str(folder), "--out", str(tmp_path / "page")]) == 0
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before


def test_a_submission_inside_the_folder_of_its_run_is_refused(run: Path) -> None:
    before = sorted(run.rglob("*"))
    for out in (run / "submission", run / "cells" / "new", run):
        with pytest.raises(RunFolderError, match=r"is in the run's folder\. Give one outside it"):
            submit(run, "Mine", out)
    assert sorted(run.rglob("*")) == before


def test_the_page_of_a_submission_is_told_in_the_words_of_python(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^url 'example.org': must begin"):
        submit(run, "Mine", tmp_path / "out", url="example.org")


def submitted(run: Path, folder: Path) -> Path:
    submit(run, "Mine", folder)
    return folder


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("cut", "cells.tar.xz is damaged (cut short). Restore it, or run the suite in another"),
        ("no cells", "cells.tar.xz is missing. Restore it."),
        ("no suite", "suite.json is missing. Restore it."),
        ("no json", "suite.json is damaged, or not the suite of a run. Restore it."),
        ("no seeds", "suite.json: seeds is missing or not valid. Restore it."),
    ],
    ids=["cut", "no cells", "no suite", "no json", "no seeds"],
)
def test_what_stops_several_checks_is_told_once(
    damage: str,
    message: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no line is broken
    folder = submitted(run, tmp_path / "out")
    archive, suite = folder / "cells.tar.xz", folder / "suite.json"
    if damage == "cut":
        archive.write_bytes(archive.read_bytes()[:3000])
    elif damage == "no cells":
        archive.unlink()
    elif damage == "no suite":
        suite.unlink()
    elif damage == "no json":
        suite.write_text("{")
    else:
        content = json.loads(suite.read_text("utf-8"))
        del content["suite"]["seeds"]
        suite.write_text(json.dumps(content), "utf-8")
    capsys.readouterr()
    assert main(["verify", str(folder)]) == 1
    out, err = capsys.readouterr()
    lines = " ".join(out.split())
    assert lines.count(f"{folder}/{message}") == 1
    first = "whole matrix" if damage == "no seeds" else "files"
    assert lines.count(f"not checked: see {first}") >= 3
    assert "--out" not in out
    assert err.endswith("mend what fails in the run, and submit it again.\n")


def test_what_a_check_found_before_an_error_is_kept(run: Path, tmp_path: Path) -> None:
    folder = submitted(run, tmp_path / "out")
    (folder / "cells.tar.xz").write_bytes(b"")
    found = {check: outcome for _, check, outcome in verify(folder).checks}
    assert [line.partition(" is ")[2][:7] for line in found["files"].wrong] == [
        "not the",
        "damaged",
    ]
    assert found["manifest"] == Outcome([], ["see files"])
    assert verify(folder).grade is None
