"""Cells of submissions, trained again: who draws them, and where foreign code runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.submissions import Forger
from helpers.workspace import Workspace
from helpers.workspace import world as world

import clbench
from clbench.board import rerun, retrain, sandbox
from clbench.board.agreement import NOISE, compare
from clbench.board.sandbox import train_in_sandbox
from clbench.board.submission import Outcome, Submission
from clbench.board.submit import submit
from clbench.board.verify import verify
from clbench.core.errors import RunFolderError
from clbench.suite.recipe import VERSIONS

QUICK = Path(__file__).parents[2] / "results" / "reference" / "quick"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("submission") / "quick"
    submit(QUICK, "Quick", folder)
    return folder


def test_the_draw_follows_from_the_content(quick: Path, tmp_path: Path) -> None:
    drawn = rerun.draw(Submission(quick), 3)
    assert drawn == rerun.draw(Submission(quick), 3)
    assert len({*drawn}) == 3
    assert drawn != rerun.draw(Submission(quick), 3, "salt")
    forger = Forger(Path(shutil.copytree(quick, tmp_path / "copy")))
    forger.manifest(lambda m: m.update(contact="me"))
    assert drawn != rerun.draw(Submission(forger.folder), 3)
    assert len(rerun.draw(Submission(quick), 1000)) == 32


def test_every_cell_can_be_drawn_and_is_about_as_often(quick: Path) -> None:
    submission = Submission(quick)
    drawn = Counter(rerun.draw(submission, 1, str(salt))[0] for salt in range(960))
    assert len(drawn) == 32
    assert max(drawn.values()) < 60  # 30 expected, standard deviation 5.4


NOSY = """
import os, socket
from pathlib import Path

import clbench

@clbench.method("nosy")
class Nosy(clbench.Method):
    def parameter_groups(self, stage):
        if "AT_HOME" not in os.environ:
            if Path({secret!r}).exists():
                raise RuntimeError("reads files")
            if [*Path({secret!r}).parent.rglob("cells.tar.xz")]:
                raise RuntimeError("reads the cells of the submission")
            for place in Path("/proc").glob("[0-9]*/environ"):
                try:
                    if b"NOSY_TOKEN" in place.read_bytes():
                        raise RuntimeError("reads the environment")
                except OSError:
                    pass
            try:
                Path({package!r}, "written").write_text("x")
                raise RuntimeError("writes files")
            except OSError:
                pass
            try:
                socket.create_connection(("127.0.0.1", {port}), timeout=5)
                raise RuntimeError("reaches the network")
            except OSError:
                pass
        return [{{"params": stage.trainable(), "lr": stage.protocol.lr}}]
"""


@pytest.fixture
def nosy(world: Workspace, tmp_path_factory: pytest.TempPathFactory,
         monkeypatch: pytest.MonkeyPatch) -> Any:  # fmt: skip
    """A submission with a method that looks around where it runs, and where its run was."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = NOSY.format(
            secret=str(outside / "secret"), package=str(Path(rerun.__file__).parent),
            port=server.getsockname()[1],
        )  # fmt: skip
        plugin = world.write("nosy.py", text)
        monkeypatch.chdir(world.folder)
        with monkeypatch.context() as home:
            home.setenv("AT_HOME", "1")
            run = world.run(methods=["nosy"], plugins=[world.plugin, plugin])
        submit(run.path, "Nosy", outside / "submission")
        yield outside / "submission"


@pytest.mark.slow
def test_code_of_a_submission_runs_in_a_sandbox_or_not_at_all(
    nosy: Path, world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: Any = {"data": world.folder, "model": str(world.folder / "model")}
    assert (nosy / "plugins" / "nosy.py").is_file()
    found = verify(nosy, **places)
    assert found.holds
    if shutil.which("bwrap"):
        monkeypatch.setenv("NOSY_TOKEN", "x")
        found = verify(nosy, again=1, threads=1, **places)
        outcome = found.checks[-1].outcome
        if "bwrap: " in str(outcome.unchecked):
            pytest.skip("containers cannot be nested here")
        assert not outcome.wrong, outcome
        assert outcome.says.endswith("scores by up to 0.0000")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    outcome = verify(nosy, again=1, **places).checks[-1].outcome
    assert "there is no bubblewrap (bwrap) here" in outcome.unchecked[0]


@pytest.mark.slow
def test_code_that_looks_around_finds_what_no_sandbox_keeps_from_it(
    nosy: Path, world: Workspace
) -> None:
    words = [str(nosy), "--data", str(world.folder), "--model", str(world.folder / "model")]
    command = [sys.executable, "-m", "clbench", "verify", *words, "--rerun", "1", "--trust"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "reads files" in done.stdout) == (1, True), done


def test_a_sandbox_that_does_not_start_says_nothing_of_the_submission(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = ["-c", "raise SystemExit('bwrap: setting up uid map: Not permitted')"]
    monkeypatch.setattr(sandbox, "_sandbox", lambda *_: ([sys.executable, *says], {**os.environ}))
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(Submission, "has_code", True)
    outcome = verify(quick, again=1).checks[-1].outcome
    assert not outcome.wrong
    assert "the sandbox did not start: bwrap: setting up uid map" in outcome.unchecked[0]


@pytest.mark.parametrize(("code", "reason"), [(0, None), (1, "last words \ufffd$")])
def test_what_code_prints_need_not_be_text(
    code: int, reason: str | None, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = (
        "import os; os.write(1, b'\\xff'); os.write(2, b'.' * 99_999 + b'\\nlast words \\xff\\n')"
    )
    words = [sys.executable, "-c", f"{says}; raise SystemExit({code})"]
    monkeypatch.setattr(sandbox, "_sandbox", lambda *_: (words, {**os.environ}))
    if reason:
        with pytest.raises(sandbox.FailedCodeError, match=reason):
            train_in_sandbox(Submission(quick), {}, tmp_path)
    else:
        assert train_in_sandbox(Submission(quick), {}, tmp_path) == []


def test_a_result_that_claims_to_be_huge_is_not_read(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cells").mkdir()
    with (tmp_path / "cells" / "x.json").open("wb") as file:
        file.truncate(1 << 30)
    words = [sys.executable, "-c", "pass"]
    monkeypatch.setattr(sandbox, "_sandbox", lambda *_: (words, {**os.environ}))
    with pytest.raises(sandbox.FailedCodeError, match="wrote more than"):
        train_in_sandbox(Submission(quick), {}, tmp_path)


def test_the_sandbox_binds_the_paths_that_the_command_names(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").write_text("one")
    (corpus := tmp_path / "corpus").symlink_to(tmp_path / "texts")
    (folder := tmp_path / "link").symlink_to(quick)
    words: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        words.extend(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    train_in_sandbox(Submission(folder, folder, None, str(corpus)), {}, tmp_path)
    work = json.loads(words[-1])
    assert {f"{work['folder']}/plugins", work["data"], work["corpus"]} <= {*words}


def test_another_version_of_a_method_says_nothing_of_the_submission(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in Submission(quick).cells:
        monkeypatch.setitem(VERSIONS, one.method, 2)
    outcome = verify(quick, again=1).checks[-1].outcome
    assert not outcome.wrong
    assert "has version 1 of its method, and this clbench 2; use clbench" in outcome.unchecked[0]

    def change(content: dict[str, Any]) -> None:
        content["recipe"]["method"]["version"] = 2

    forger = Forger(Path(shutil.copytree(quick, tmp_path / "copy")))
    forger.cells(change)
    forger.seal()
    found = {check: outcome for _, check, outcome in verify(forger.folder).checks}
    assert not any(outcome.wrong for outcome in found.values()), found


def test_rows_that_cannot_be_compared_say_nothing_of_the_submission(
    quick: Path, tmp_path: Path
) -> None:
    def change(content: dict[str, Any]) -> None:
        tasks = content.get("recipe", content)["tasks"]
        tasks["synthetic/sentiment"] |= {"dataset": "elsewhere", "revision": "mirror"}

    forger = Forger(Path(shutil.copytree(quick, tmp_path / "copy")))
    forger.cells(change)
    forger.manifest(change)
    forger.seal()
    found = verify(forger.folder, again=1)
    outcomes = {check: outcome for _, check, outcome in found.checks}
    assert "there from mirror" in outcomes["rows"].unchecked[0]
    assert outcomes["trained again"] == Outcome(unchecked=["see rows"])
    assert (found.holds, found.grade) == (True, "reported")


def test_cells_are_trained_with_the_threads_that_are_asked_for(
    quick: Path, monkeypatch: pytest.MonkeyPatch, clbench: Any
) -> None:
    asked = []

    def train(submission: Submission, cells: Any, out: Path, threads: int | None) -> Any:
        asked.append(threads)
        return [cell for cell in submission.cells if cell.key in cells]

    monkeypatch.setattr(rerun, "train", train)
    code, _, err = clbench("verify", str(quick), "--rerun", "1", "--threads", "3")
    (key,) = rerun.draw(Submission(quick), 1)
    assert (code, asked) == (0, [3])
    assert re.match(rf"training 1 of 32 cells again, which took \d+ s there: {key}", err)
    assert "(0 s)" not in err
    assert clbench("verify", str(quick), "--rerun", "1", "--threads", "0")[0] == 2


def test_a_changed_plugin_cannot_be_submitted(
    world: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(world.folder)
    run = world.run()
    world.write("opposite.py", "# changed\n" + world.plugin.read_text("utf-8"))
    with pytest.raises(RunFolderError, match=r"opposite.py: has changed since the run"):
        submit(run.path, "Mine", tmp_path / "submission")
    assert not (tmp_path / "submission").exists()


@pytest.mark.slow
def test_references_of_an_earlier_command_are_trained_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"methods": "vanilla", "scenarios": "sentiment-acc*", "seeds": 0}
    options |= {"limit": 16, "scored_limit": 16, "epochs": 1, "out": tmp_path / "run"}
    clbench.run("quick", references=True, **options)
    run = clbench.run("quick", references=False, **options)
    submit(run.path, "Mine", tmp_path / "submission")
    submission = Submission(tmp_path / "submission")
    (alone,) = (cell for cell in submission.cells if cell.reference_of is not None)
    (ours,) = retrain.train(submission, {alone.key: alone.fingerprint}, tmp_path / "again")
    assert compare([alone], [ours], [alone.key]).wrong == []


def test_the_page_and_the_limits_follow_from_what_was_measured() -> None:
    root = Path(__file__).parents[2]
    table = pd.read_csv(root / "results" / "verdicts" / "reruns.csv")
    text = " ".join((root / "docs" / "submit.md").read_text("utf-8").split())
    table["share"] = table["flips"] / table["rows"]
    table["trained"] = table["suite"] + table["cell"]
    by_precision = table.groupby("precision")
    shares, scores = by_precision["share"].max(), by_precision["score"].max()
    counts = by_precision["trained"].nunique()
    pairs = by_precision.size()
    for precision in ("float32", "bf16"):
        assert f"({pairs[precision]} pairs of {counts[precision]} cells)" in text
        assert shares[precision] <= NOISE[precision].rows / 2
        assert scores[precision] <= NOISE[precision].score / 2
    assert shares["float32"] == 0
    assert f"at most {shares['bf16']:.1%} of the rows".replace("%", " %") in text
    assert f"scores by up to {scores['bf16']:.3f}".replace("0.", ".") in text
    limits = (f"{100 * NOISE[name].rows:.0f} %" for name in ("float32", "bf16"))
    assert "at most {} in float32 and {} with bf16".format(*limits) in text
