"""The user's paths, whole files, tensors with a checksum, and locked folders."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import clbench
from clbench.cli import main
from clbench.core.errors import DataError, RunFolderError
from clbench.core.files import (
    DamagedFileError,
    check_folder,
    digest,
    load_tensors,
    locked,
    read_file,
    save_tensors,
    user_path,
    write_atomically,
    write_if_possible,
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("x" * 300, "File name too long"), ("a\0b", "embedded null"), ("loop", "symbolic links")],
)
def test_a_path_that_no_file_can_have_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match=f"^--out .* is not a usable path: .*{reason}"):
        user_path(text, "--out", tmp_path)


def test_paths_start_from_the_base_or_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/none", "--out", Path("base")) == tmp_path / "none"
    assert user_path("none", "--out", tmp_path) == tmp_path / "none"
    assert user_path("~no-such-user/x", "--out") == Path("~no-such-user/x")


def test_a_digest_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert digest(tmp_path / "file") == digest(b"abc") == digest("abc")
    assert digest("abc") == "cf4ab791c62b8d2b2109c90275287816"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a regular file"):
        digest(tmp_path / "pipe")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_file(tmp_path / name)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").write_bytes(b"content")
    assert read_file(tmp_path / "link") == b"content"


FACTS = {"loss": 0.25, "texts": ["a", "ß"], "none": None}


def full(path: Path) -> None:
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device", str(path))


def truncated(*_: object, **__: object) -> None:
    raise SafetensorError("I/O error: File too large")


def test_a_full_disk_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safetensors.torch.save_file", truncated)
    for write in (full, partial(save_tensors, {"a": torch.ones(1)})):
        assert not write_if_possible(tmp_path / "cache" / "x", write)
        assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    assert not write_if_possible(tmp_path / "file" / "x", "text")
    assert write_if_possible(tmp_path / "new" / "x", "text")
    assert (tmp_path / "new" / "x").read_text() == "text"


def test_other_errors_are_raised(tmp_path: Path) -> None:
    def wrong(path: Path) -> None:
        raise ValueError("shape")

    with pytest.raises(ValueError, match="shape"):
        write_if_possible(tmp_path / "x", wrong)


def test_tensors_and_facts_are_read_back(tmp_path: Path) -> None:
    table = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    tensors = {
        "table": table,
        "tied": table,
        "turned": table.T,
        "row": table[1],
        "half": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "none": torch.empty(0, dtype=torch.int64),
        "trained": torch.nn.Parameter(torch.ones(2)),
    }
    save_tensors(tensors, tmp_path / "file", FACTS)
    loaded, facts = load_tensors(tmp_path / "file")
    assert facts == FACTS
    assert loaded.keys() == tensors.keys()
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype
        torch.testing.assert_close(loaded[name], value.detach(), rtol=0, atol=0, equal_nan=True)


def test_any_changed_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tensors({"a": torch.rand(5), "b": torch.arange(3)}, path, FACTS)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for flip in (1, 0x80):
            changed = bytearray(whole)
            changed[position] ^= flip
            path.write_bytes(changed)
            with pytest.raises(DamagedFileError):
                load_tensors(path)
    for part in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(part)
        with pytest.raises(DamagedFileError):
            load_tensors(path)
    path.write_bytes(whole)
    assert load_tensors(path)[1] == FACTS


def test_files_without_a_checksum_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "plain")
    for name in ("plain", "missing", "."):
        with pytest.raises(DamagedFileError):
            load_tensors(tmp_path / name)


HOLD_THE_LOCK = """
import sys, time
from pathlib import Path
from clbench.core.files import locked
out = Path(sys.argv[1])
with locked(out, marker=out / "begun"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    marker = tmp_path / "begun"
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        text = rf"in use by another clbench process \(pid {process.pid} since [\d .:-]+\)\."
        with pytest.raises(RunFolderError, match=text), locked(tmp_path, marker=marker):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked(tmp_path, marker=marker):
        pass


def test_the_folder_of_a_process_that_started_first_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process creates and locks the folder after this one has seen that it is missing."""
    out, mkdir = tmp_path / "results" / "quick", Path.mkdir
    processes: list[subprocess.Popen[str]] = []

    def overtaken(path: Path, *arguments: int, **options: bool) -> None:
        if not processes:
            command = [sys.executable, "-c", HOLD_THE_LOCK, str(out)]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert processes[0].stdout is not None
            assert processes[0].stdout.readline() == "held\n"
            (out / "work").touch()
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", overtaken)
    try:
        with pytest.raises(RunFolderError, match="in use"), locked(out, marker=out / "begun"):
            pass
        assert (out / "work").exists()
    finally:
        processes[0].kill()
        processes[0].wait()


def test_a_deleted_working_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "The working folder was deleted. Change to another folder."
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(DataError, match=text):
        clbench.run("quick")
    assert main(["report", "out"]) == 2
    assert capsys.readouterr().err == f"error: {text}\n"


def test_a_folder_below_a_file_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(RunFolderError, match="file is not a folder"):
            check_folder(out)
        with pytest.raises(RunFolderError, match="file is not a folder"), locked(out, marker=out):
            pass
    check_folder(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_at_the_lock_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    with (
        pytest.raises(RunFolderError, match=r"run cannot be written: No space left"),
        locked(tmp_path / "run", marker=tmp_path / "x"),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), locked(tmp_path, marker=tmp_path / "x"):
        raise ValueError("inside")
    with locked(tmp_path, marker=tmp_path / "x"):
        pass


KILLED_AT_EVERY_LINE = """
import json, os, signal, sys
from pathlib import Path
from clbench.core import files
writers = {Path(files.__file__)}
target = Path(sys.argv[1]) / "file"


def rewrite(line):
    # Write in a child process that is killed before the line-th line of the code under test.
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    remaining = line

    def trace(frame, event, argument):
        nonlocal remaining
        if Path(frame.f_code.co_filename) not in writers:
            return None
        if event == "line":
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    files.write_atomically(target, "new" * 100_000)
    os._exit(0)


line, code = 0, -signal.SIGKILL
while code:
    files.write_atomically(target, "old" * 100_000)
    line += 1
    code = rewrite(line)
    text = target.read_text()
    parts = list(target.parent.glob(".*.part"))
    sizes = [part.stat().st_size for part in parts]
    print(json.dumps([code, text[:3], len(text), sizes]), flush=True)
    for part in parts[1:]:
        part.unlink()
"""


def test_killed_at_any_line_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_LINE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    kills = [json.loads(line) for line in process.stdout.splitlines()]
    assert [code for code, *_ in kills] == [-signal.SIGKILL] * (len(kills) - 1) + [0]
    assert {size for _, _, size, _ in kills} == {300_000}
    texts = [text for _, text, *_ in kills]
    assert texts == ["old"] * texts.count("old") + ["new"] * texts.count("new")
    assert "old" in texts
    assert "new" in texts[:-1], "no kill came after the new file was in place"
    assert any(sizes for *_, sizes in kills), "no kill came while the file was written"
    assert list(tmp_path.rglob("*.part"))
    with locked(tmp_path, marker=tmp_path / "x"):
        assert list(tmp_path.rglob("*.part")) == []


def test_half_written_folders_are_removed_too(tmp_path: Path) -> None:
    part = tmp_path / "stages" / ".abc.part"
    part.mkdir(parents=True)
    (part / "model.safetensors").write_text("x")
    with locked(tmp_path, marker=tmp_path / "x"):
        assert not part.exists()


def test_a_full_disk_is_reported_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    write_atomically(target, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="file cannot be written: No space left on device"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_locked_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with (
        pytest.raises(RunFolderError, match="Permission denied"),
        locked(tmp_path / "x", marker=tmp_path / "y"),
    ):
        pass


def test_a_folder_without_permissions_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, int]] = []

    def refuse(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", refuse)  # root may write anywhere
    message = rf"y cannot be written: {re.escape(str(tmp_path))} is read-only\. "
    with pytest.raises(RunFolderError, match=message):
        check_folder(tmp_path / "x" / "y")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
    assert list(tmp_path.iterdir()) == []


def test_an_error_before_the_run_has_begun_removes_the_folders_that_it_created(
    tmp_path: Path,
) -> None:
    out = tmp_path / "results" / "quick"

    def run(*, begun: bool) -> None:
        with locked(out, marker=out / "suite.json"):
            (out / "scenarios").mkdir()
            if begun:
                write_atomically(out / "suite.json", "{}")
            raise ValueError("bad data")

    with pytest.raises(ValueError, match="bad data"):
        run(begun=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="bad data"):
        run(begun=True)
    assert (out / "suite.json").exists()


def test_a_folder_that_existed_before_stays(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("mine")
    with pytest.raises(ValueError, match="bad data"), locked(tmp_path, marker=tmp_path / "x"):
        raise ValueError("bad data")
    assert (tmp_path / "log.txt").read_text() == "mine"
