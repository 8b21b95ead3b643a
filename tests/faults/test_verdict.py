"""The verdict sees what it looks for."""

from pathlib import Path

import pytest

from faults.sandbox import Outcome
from faults.verdict import dry_faults, faults, file_faults, output_faults, snapshot

REFUSED = "error: small.toml: name: is missing.\n"


@pytest.mark.parametrize(
    ("code", "err", "problem"),
    [
        (2, REFUSED, ""),
        (0, "a note\n" * 9, ""),
        (None, "", "no answer in time"),
        (-11, "", "exit code -11"),
        (1, "Traceback (most recent call last):\n", "a traceback on stderr"),
        (2, "error: \x1b[31m\n", "control character on stderr: 'error: \\x1b[31m\\n'"),
        (2, "error: " + "x" * 3_000 + "\n", "a line of more than 2500 characters on stderr"),
        (2, "", "0 lines on stderr"),
        (2, "note\n" * 3 + REFUSED, "4 lines on stderr"),
        (2, "note\n", "the last line is no error"),
        (0, "/a.py:7: RuntimeWarning: x\n", "a warning of Python on stderr: .py:7: RuntimeWarning"),
    ],
)  # fmt: skip
def test_the_verdict_on_an_answer(code: int | None, err: str, problem: str) -> None:
    assert "; ".join(faults(Outcome(code, "", err))) == problem


def test_the_verdict_on_files(tmp_path: Path) -> None:
    data, out = tmp_path / "data.csv", tmp_path / "out"
    data.write_text("a")
    before = snapshot(tmp_path)
    assert list(file_faults(before, snapshot(tmp_path), 2, ["out"])) == []
    out.mkdir()
    assert list(file_faults(before, snapshot(tmp_path), 0, ["out"])) == []
    assert list(file_faults(before, snapshot(tmp_path), 2, ["out"])) == ["out left"]
    (out / ".x.part").touch()
    assert list(file_faults(before, snapshot(tmp_path), 0, ["out"])) == [
        "half-written file out/.x.part"
    ]
    (out / ".x.part").unlink()
    data.write_text("b")
    assert list(file_faults(before, snapshot(tmp_path), 0, ["out"])) == ["data.csv changed"]
    (out / "scores.csv").write_text("p\nnan\n")
    (out / "report.html").write_text("<script>alert(1)</script>")
    problems = list(output_faults(tmp_path, snapshot(tmp_path)))
    assert problems == ["a foreign script in out/report.html", "nan in out/scores.csv"]


def test_the_verdict_on_a_dry_run() -> None:
    fine, refused = Outcome(0, "", ""), Outcome(2, "", REFUSED)
    assert list(dry_faults(refused, refused, begun=False)) == []
    assert list(dry_faults(fine, refused, begun=False)) == ["--dry-run accepts what run refuses"]
    assert list(dry_faults(fine, refused, begun=True)) == []  # it broke while it trained
    assert list(dry_faults(refused, fine, begun=True)) == ["--dry-run refuses what run accepts"]
