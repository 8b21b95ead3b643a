from __future__ import annotations

import errno
import json
import os
import re
import signal
from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest
from helpers.commands import KEYS, RUN, Call
from helpers.fake_engine import FakeExecutor

from clbench.core.errors import ClusterError
from clbench.results.archive import pack
from clbench.results.store import Store


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def spaced(text: str) -> str:
    return " ".join(text.split())


def test_a_run_from_end_to_end(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    code, out, err = clbench("run", "mine.toml")
    assert code == 0
    references = [f"one-two--reference1--seed{seed}" for seed in (0, 1)]
    assert engine.ran == [*KEYS[:2], references[0], *KEYS[2:], references[1]]
    lines = err.splitlines()
    assert lines[0] == "mine: 6 cells to run, results in results/mine"
    assert lines[1].startswith(
        "[1/6] one-two--vanilla--seed0: p_o 0.800  p_s 0.700  forgetting 0.100 (0 s; about "
    )
    assert lines[6] == "[6/6] one-two--reference1--seed1: score 0.750 (0 s)"
    assert "0.800 ±0.000" in out
    frame = pd.read_csv(place / "results" / "mine" / "scores.csv")
    assert len(frame) == 4
    assert frame["status"].tolist() == ["ok"] * 4
    suite = json.loads((place / "results" / "mine" / "suite.json").read_text())["suite"]
    assert suite["methods"] == ["vanilla", "frozen"]


def test_nobody_takes_a_smoke_run_for_a_result(
    place: Path, engine: FakeExecutor, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clbench.report.files.draw_all", lambda figures, formats: [])
    assert clbench(*RUN)[0] == 0
    code, out, err = clbench(*RUN, "--smoke")
    assert (code, engine.ran[4:]) == (0, KEYS[:2])
    mark = "Smoke run at about a tenth of the rows and steps: these scores are no result."
    assert out.startswith(f"{mark}\n")
    folder = place / "results" / "mine-smoke"
    assert set(pd.read_csv(folder / "scores.csv")["reason"]) == {mark}
    cell = json.loads((folder / "cells" / f"{KEYS[0]}.json").read_text())
    assert cell["recipe"]["protocol"]["smoke"] is True
    assert clbench("report", str(folder))[1].startswith(mark)
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "<h1>mine-smoke</h1>" in page
    assert f'<p class="failed">{mark}</p>' in page
    code, _, err = clbench(*RUN, "--smoke", "--replace", "--out", "results/mine")
    assert (code, "holds a run of the suite 'mine', not of 'mine-smoke'" in err) == (2, True)


def test_a_finished_run_trains_nothing(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    clbench(*RUN)
    engine.ran.clear()
    (place / "results" / "mine" / "scores.csv").unlink()
    code, out, err = clbench(*RUN)
    assert code == 0
    assert engine.ran == []
    assert err == "mine: 4 cells, all already finished in results/mine; nothing to run\n"
    assert "0.800 ±0.000" in out
    assert (place / "results" / "mine" / "scores.csv").exists()


def test_a_finished_run_in_a_read_only_folder_says_that_the_table_is_old(
    place: Path, engine: FakeExecutor, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    clbench(*RUN, "--seeds", "0")
    (place / "results/mine/scores.csv").unlink()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("os.fsync", refuse)
    code, out, err = clbench(*RUN, "--seeds", "0")
    assert code == 0
    assert "The table was not updated: " in err
    assert "Read-only file system" in err
    assert "vanilla" in out


def test_failed_cells_are_tried_again(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    engine.fails = {KEYS[3]}
    code, out, err = clbench(*RUN)
    assert code == 1
    assert f"[4/4] {KEYS[3]}: failed: loss is nan (0 s)" in err
    assert f"failed: {KEYS[3]}: loss is nan" in out
    assert "1 of 4 cells failed; repeat the command to retry." in out
    engine.fails, engine.ran = set(), []
    code, _, err = clbench(*RUN)
    assert code == 0
    assert engine.ran == [KEYS[3]]
    assert err.startswith("mine: 4 cells, 3 already finished, 1 to run, results in results/mine\n")


def test_an_interrupted_run_can_be_resumed(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    engine.raises = KeyboardInterrupt()
    code, _, err = clbench(*RUN)
    assert code == 130
    assert err.splitlines()[-1] == "stopped; run the same command again to resume"
    assert len(pd.read_csv(place / "results" / "mine" / "scores.csv")) == 1
    engine.raises = None
    assert clbench(*RUN)[0] == 0
    assert engine.ran == KEYS


def test_a_run_that_loses_ray_shows_what_is_kept(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    engine.raises = ClusterError("Ray died on this machine.")
    code, output, error = clbench(*RUN, "--out", "out")
    assert code == 2
    assert error.splitlines()[-1] == "error: Ray died on this machine."
    assert "one-two" in output
    assert "vanilla" in output
    assert "Scores: out/scores.csv" in output


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_other_signals_end_a_run_as_ctrl_c_does(
    place: Path,
    engine: FakeExecutor,
    clbench: Call,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    code: int,
) -> None:
    number = getattr(signal, name)
    monkeypatch.setattr(engine, "between", lambda: os.kill(os.getpid(), number))
    before = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    try:
        exit_code, _, err = clbench(*RUN)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert exit_code == code
    assert err.splitlines()[-1] == "stopped; run the same command again to resume"
    assert engine.ran == KEYS[:1]
    assert len(pd.read_csv(place / "results" / "mine" / "scores.csv")) == 1


def test_a_run_under_nohup_outlives_its_terminal(
    place: Path, engine: FakeExecutor, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "between", lambda: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert clbench(*RUN)[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert engine.ran == KEYS


def test_options_reach_the_plan(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    code, _, _ = clbench(
        *("run", "mine.toml", "--out", "there", "--methods", "frozen", "--seeds", "2-3"),
        *("--scenarios", "one*", "--limit", "20", "--epochs", "1", "--precision", "float32"),
        "--references",  # the default
    )
    assert code == 0
    assert engine.ran == [
        *("one-two--frozen--seed2", "one-two--reference1--seed2"),
        *("one-two--frozen--seed3", "one-two--reference1--seed3"),
    ]
    cells = Store(place / "there").read().cells
    assert {cell.recipe["protocol"]["limit"] for cell in cells} == {20}
    assert {cell.recipe["protocol"]["epochs"] for cell in cells} == {1}
    frame = pd.read_csv(place / "there" / "scores.csv")
    # the reference scored 0.75 alone, R[1, 1] is 0.70
    assert frame["intransigence"].tolist() == pytest.approx([0.05, 0.05])


def test_wrong_settings_are_named_before_a_conflict(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    suite = place / "mine.toml"
    variant = '[baseline.soft]\nof = "ewc"\nsettings = { importance = 5.0 }\n'
    suite.write_text(suite.read_text().replace('"frozen"', '"soft"') + variant)
    assert clbench(*RUN)[0] == 0
    suite.write_text(suite.read_text().replace("importance = 5.0", "importance = -1.0"))
    code, _, err = clbench(*RUN)
    assert code == 2
    assert "importance" in err
    assert "greater than 0" in err
    assert "--replace" not in err


def test_cells_of_other_settings_need_replace(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench(*RUN)
    code, _, err = clbench(*RUN, "--epochs", "1")
    assert code == 2
    assert err == (
        "error: results/mine/cells/one-two--vanilla--seed0.json was run with epochs = 3, now 1 "
        "(and 3 more cells). Choose another --out, or --replace to run again and keep the "
        "old files in cells/replaced/.\n"
    )
    engine.ran.clear()
    code, _, err = clbench(*RUN, "--epochs", "1", "--replace")
    assert code == 0
    assert engine.ran == KEYS
    assert err.startswith("4 cells of other settings moved to cells/replaced/.\n")
    assert len(list((place / "results/mine/cells/replaced").iterdir())) == 4


def test_a_packed_run_goes_on_where_it_stopped(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench(*RUN, "--seeds", "0")
    folder = place / "results/mine"
    before = (folder / "scores.csv").read_bytes()
    packed = pack(folder).read_bytes()
    engine.ran.clear()
    assert clbench(*RUN, "--seeds", "0")[0] == 0
    assert engine.ran == []
    assert (folder / "scores.csv").read_bytes() == before
    assert clbench(*RUN)[0] == 0
    assert engine.ran == [key for key in KEYS if key.endswith("seed1")]
    assert {path.stem for path in (folder / "cells").iterdir()} == {*engine.ran}
    assert (folder / "cells.tar.xz").read_bytes() == packed
    assert len(pd.read_csv(folder / "scores.csv")) == 4


def test_cells_of_other_settings_in_an_archive_need_replace(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench(*RUN)
    folder = place / "results/mine"
    old = {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}
    pack(folder)
    code, _, err = clbench(*RUN, "--epochs", "1")
    assert code == 2
    assert err.startswith(f"error: results/mine/cells.tar.xz/{KEYS[0]}.json was run with epochs")
    code, _, err = clbench(*RUN, "--epochs", "1", "--replace")
    assert (code, err.splitlines()[0]) == (
        0,
        "4 cells of other settings moved to cells/replaced/.",
    )
    replaced = (folder / "cells" / "replaced").iterdir()
    assert {path.name: path.read_bytes() for path in replaced} == old
    assert not (folder / "cells.tar.xz").exists()


@pytest.mark.slow
def test_reports_of_a_packed_run_are_those_of_its_files(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench(*RUN)
    folder = place / "results/mine"
    verbs = [("report", "results/mine"), ("compare", "results/mine", "results/mine2")]
    copytree(folder, place / "results/mine2")
    answers = [clbench(*verb, "--formats", "png") for verb in verbs]
    scores = (folder / "scores.csv").read_bytes()
    for name in ("mine", "mine2"):
        pack(place / "results" / name)
    assert [clbench(*verb, "--formats", "png") for verb in verbs] == answers
    assert (folder / "scores.csv").read_bytes() == scores


def test_edited_rows_are_noticed(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    clbench(*RUN)
    text = (place / "one.csv").read_text()
    (place / "one.csv").write_text(text.replace("number 3", "number three"))
    code, _, err = clbench(*RUN)
    assert code == 2
    assert "was run with different rows of one (and 3 more cells)" in err


def test_a_broken_cell_is_named_and_run_again(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench(*RUN)
    engine.ran.clear()
    (place / f"results/mine/cells/{KEYS[1]}.json").write_text('{"schema_ver')
    code, _, err = clbench(*RUN)
    assert code == 0
    assert engine.ran == [KEYS[1]]
    assert err.splitlines()[0] == (
        f"results/mine/cells/{KEYS[1]}.json is not a valid cell file (truncated or not JSON); "
        f"moved to cells/broken/{KEYS[1]}.json. It will be run again."
    )


def test_another_method_in_the_same_folder(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench(*RUN, "--methods", "vanilla")
    _, out, _ = clbench(*RUN, "--methods", "frozen")
    assert "vanilla" not in out
    assert len(pd.read_csv(place / "results/mine/scores.csv")) == 4


def test_dry_run_writes_nothing(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    before = files(place)
    code, out, err = clbench(*RUN, "--dry-run")
    assert code == 0
    assert err.startswith("Precision: ")
    assert err.count("\n") == 1
    assert files(place) == before
    assert engine.ran == []
    for key in KEYS:
        assert f"{key} to run" in spaced(out)
    assert "4 cells, 4 to run, results in results/mine" in out
    assert re.search(r"Estimate: somewhere between \d+ s and \d+ s \(a guess from tokens × p", out)
    assert "Memory of the tensors of a training step, and at most in a cell, from shapes:" in out
    assert re.search(r"  vanilla: \d+ MB, \d+ MB\n", out)
    assert "A cell takes up to " in out


def test_a_dry_run_names_the_change_that_fits(
    place: Path, engine: FakeExecutor, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = clbench(*RUN, "--dry-run")
    peak = re.search(r"A cell takes up to (\d+) MB", out)
    assert peak
    for room, advice in [
        (int(peak[1]) - 1, r"With accumulation = 16 and the method lora it takes \d+ MB\."),
        (1, r"No setting of clbench is enough: use a smaller model\."),
    ]:
        monkeypatch.setattr("clbench.runner.fit.room_mb", lambda *_, room=room: room)
        _, out, _ = clbench(*RUN, "--dry-run")
        assert re.search(rf"A cell takes up to {peak[1]} MB, but has {room} MB\. {advice}", out)


def test_a_dry_run_names_the_looks(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    code, out, _ = clbench(*RUN, "--seeds", "until-settled:3,6", "--dry-run")
    assert code == 0
    assert "12 cells, 12 to run" in out
    assert "Looks after 3, 6 seeds: the run may stop at each." in out


def test_dry_run_estimates_from_what_was_run(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    engine.fails = {KEYS[3]}
    clbench(*RUN)
    (place / f"results/mine/cells/{KEYS[2]}.json").write_text("{")
    before = files(place)
    code, out, err = clbench(*RUN, "--dry-run")
    assert code == 0
    assert files(place) == before
    assert f"{KEYS[0]} finished" in spaced(out)
    assert f"{KEYS[3]} failed before, to run again" in spaced(out)
    assert "is not a valid cell file (truncated or not JSON). It will be run again." in err
    # two cells to run, each taken for 10 + 2 seconds
    assert "Estimate: about 24 s (from the times of 2 finished cells)." in out


def test_bad_data_leaves_nothing_behind(place: Path, clbench: Call) -> None:
    (place / "one.csv").write_text("text,label\n")
    before = files(place)
    code, out, err = clbench(*RUN)
    assert code == 2
    assert out == ""
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
    assert "one.csv" in err
    assert files(place) == before
