"""Wrong usage: one line, exit code 2, nothing written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import Call

from clbench import __version__
from clbench.cli.app import PLACES, VERBS


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["rnu"], ["No such command 'rnu'", "Did you mean 'run'?", "clbench --help"]),
        (["run", "--metods", "a"], ["--metods", "--methods", "See clbench run --help"]),
        (["run", "mine.toml", "--limit"], ["--limit", "See clbench run --help"]),
        (["run", "a\x1b[2Jb"], [r"'a\x1b[2Jb'"]),
        (["run", "a", "b"], ["unexpected extra argument", "b"]),
        (["run", "mine.toml", "--limit", "0"], ["--limit: must be greater than 0, got 0"]),
        (["run", "mine.toml", "--limit", "many"], ["'--limit'", "whole number. See"]),
        (["run", "mine.toml", "--out", ""], ["--out: is empty. Give a path"]),
        (["run", "mine.toml", "--data", ""], ["--data: is empty. Give a path"]),
        (
            ["audit", "tiny", "other", "--out", ""],
            ["--out: is empty. Give a path"],
        ),
        (["report", "run", "--out", ""], ["--out: is empty. Give a path"]),
        (["run", "mine.toml", "--epochs", "-1"], ["--epochs: must be greater than 0"]),
        (["run", "mine.toml", "--seeds", "0-x"], ["--seeds '0-x'", "0,1,2 or 0-4"]),
        (["run", "mine.toml", "--seeds", ""], ["--seeds ''"]),
        (
            ["run", "mine.toml", "--precision", "bf"],
            ["--precision", "Did you mean 'bf16'?"],
        ),
        (["run", "mine.toml", "--device", "tpu"], ["--device 'tpu'", "cuda"]),
        (["run", "nosuch"], ["Unknown suite 'nosuch'", "Available"]),
        (["run", "none.toml"], ["none.toml"]),
        (["run", "mine.toml", "--methods", "vanila"], ["'vanila'", "Did you mean 'vanilla'"]),
        (["run", "mine.toml", "--scenarios", "x*"], ["'x*'", "one-two"]),
        (["run", "mine.toml", "--model", "./none"], ["./none"]),
        (["run", "mine.toml", "--data", "none"], ["--data none"]),
        (["run", "mine.toml", "--plugin", "none.py"], ["none.py"]),
        (["run", "mine.toml", "--out", "one.csv"], ["one.csv is a file, not a folder"]),
        (["run", "mine.toml", "--out", "one.csv", "--dry-run"], ["one.csv is a file"]),
        (["run", "mine.toml", "--out", "x" * 300], ["--out 'xxx", "File name too long"]),
        (["report", "x" * 300], ["xxx…: File name too long. Check the path."]),
        (
            ["run", "mine.toml", "--threads", "9" * 12],
            ["--threads: must be less than or equal to 4096"],
        ),
        (["run", "mine.toml", "--limit", "9" * 12], ["--limit: must be less than or equal to 10"]),
        (["run", "mine.toml", "--model", "./\x1b[31m"], ["./\\x1b[31m"]),
        (["run", "nosuch" * 1000], ["suite 'nosuch", "File name too long"]),
        (["check", "vanilla", "--set", "lr=" + "9" * 5000], ["lr: must be", "got '999"]),
        (["check", "ewc", "--set", "importance=0x" + "f" * 5000], ["importance: must be a number"]),
        (["run", "mine.toml", "--workers", "2", "--gpus", "inf"], ["--gpus inf: must be"]),
        (["run", "mine.toml", "--out", "one.csv/x"], ["one.csv is not a folder"]),
        (["run", "mine.toml", "--out", "one.csv/x", "--dry-run"], ["one.csv is not a folder"]),
        (["run", "mine.toml", "--address", "127.0.0.1:1", "--dry-run"], ["the cluster?\n"]),
        (["list"], ["Missing argument", "suites|scenarios"]),
        (["list", "suits"], ["'suits'", "Did you mean 'suites'"]),
        (["list", "scenarios", "--suite", "nosuch"], ["Unknown suite 'nosuch'"]),
        (["report"], ["Missing argument"]),
        (["report", "none"], ["There is no folder none"]),
        (["report", "one.csv"], ["one.csv is a file"]),
        (["report", "."], ["holds no run"]),
    ],
)
def test_wrong_usage_prints_one_line_and_writes_nothing(
    place: Path, clbench: Call, arguments: list[str], parts: list[str]
) -> None:
    before = {str(path) for path in place.rglob("*")}
    code, out, err = clbench(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
    assert {str(path) for path in place.rglob("*")} == before


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ImportError("lib.so: failed to map segment\nmore"), "ImportError: lib.so: failed to map"),
        (MemoryError(), "MemoryError. Give it more memory (ulimit -v), or install clbench again."),
        (FileNotFoundError(2, "No usable temporary directory"), "No usable temporary directory. "),
    ],
)
def test_what_the_system_lacks_is_one_line(
    clbench: Call, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("clbench.api.read_suite", fail)
    code, _, err = clbench("run", "quick", "--dry-run")
    assert code == 2
    assert err.startswith(f"error: {text}")
    assert err.count("\n") == 1


def test_help_and_version(clbench: Call) -> None:
    code, out, _ = clbench()
    assert code == 0
    sections = re.split(r"\n(?=\S)", out)
    for title, verbs in VERBS.items():
        (section,) = (text for text in sections if text.startswith(title))
        lines = [line.split(maxsplit=1) for line in section.splitlines()[1:] if line]
        assert lines == [[verb, text] for verb, text in verbs.items()]
    code, out, _ = clbench("run", "--help")
    assert code == 0
    options = (
        "--out --model --data --methods --scenarios --seeds --limit --subset --epochs --device "
        "--precision --plugin --references --replace --dry-run"
    )
    for option in options.split():
        assert option in out
    for title, option in (("What to run:", "--methods"), ("How to train:", "--epochs")):
        section = out.partition(title)[2]
        assert option in section.partition("\n\n")[0]
    assert "Examples:\n    clbench run quick\n" in out
    assert clbench("--version")[1] == f"clbench {__version__}\n"


@pytest.mark.parametrize("verb", [verb for verbs in VERBS.values() for verb in verbs])
def test_every_verb_has_a_help_that_begins_with_its_purpose(clbench: Call, verb: str) -> None:
    code, out, err = clbench(verb, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: clbench {verb} ")
    assert set(PLACES) < {verb for verbs in VERBS.values() for verb in verbs}


def test_a_group_of_one_option_has_no_heading(clbench: Call) -> None:
    out = clbench("check", "--help")[1]
    assert re.findall(r"^(\S.*):$", out, re.MULTILINE) == ["Arguments", "Options"]
    options = re.findall(r"^  (-\S+)", out.partition("Options:")[2], re.MULTILINE)
    assert options == ["--set", "--plugin", "--model", "-h,"]
    assert "\n  METHOD  Baseline," in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "clbench", "list", "shifts"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert process.returncode == 2
    assert process.stderr == (
        "error: the output cannot be written: No space left on device. Free some space.\n"
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["run", "nosuch"], 2), (["run", "--metods", "a"], 2), (["run", "quick", "--dry-run"], 0)],
)
def test_messages_that_cannot_be_written_leave_the_exit_code(
    arguments: list[str], code: int
) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "clbench", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=full,
            check=False,
        )
    assert process.returncode == code


GATE = "from clbench.cli.console import say; say('lost', 'and more'); raise SystemExit(3)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"), [(["-m", "clbench", "list", "methods"], 0), (["-c", GATE], 3)]
)
def test_a_reader_that_is_gone_leaves_the_exit_code(words: list[str], code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, *words], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (code, b"")


def test_unprintable_characters_become_question_marks() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "clbench", "list", "scenarios", "--suite", "quick"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0
    assert "synthetic/sentiment ? synthetic/acceptability" in process.stdout


def test_control_characters_and_endless_text_never_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.table import Table

    from clbench.cli.app import _fail
    from clbench.cli.console import out, show_table

    out().print("a\x1b[31mb\u202ec\n  two  blanks", soft_wrap=True)
    table = Table("name\x1b[2J")
    table.add_row("cell\x07")
    show_table(out(), table)
    _fail("\x1b]0;title\x07 " + "x" * 100_000)
    printed = capsys.readouterr()
    assert r"a\x1b[31mb\u202ec" + "\n  two  blanks" in printed.out
    assert r"name\x1b[2J" in printed.out
    assert r"cell\x07" in printed.out
    assert all(c == "\n" or c.isprintable() for c in printed.out + printed.err)
    assert len(printed.err) < 2100
