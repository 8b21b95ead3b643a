from __future__ import annotations

import os
from pathlib import Path

import pytest

from clbench.core.errors import DataError
from clbench.core.files import read_file, user_path


@pytest.mark.parametrize(
    ("text", "reason"),
    [("x" * 300, "File name too long"), ("a\0b", "embedded null byte"), ("loop", "symbolic links")],
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


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_file(tmp_path / name)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").write_bytes(b"content")
    assert read_file(tmp_path / "link") == b"content"
