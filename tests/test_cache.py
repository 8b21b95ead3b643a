from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import SafetensorError

from clbench.cache import write_if_possible


def full(path: Path) -> None:
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device", str(path))


def broken_off(path: Path) -> None:
    raise SafetensorError("I/O error: File too large")


@pytest.mark.parametrize("write", [full, broken_off])
def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    assert not write_if_possible(tmp_path / "cache" / "x", write)
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    assert not write_if_possible(tmp_path / "file" / "x", "text")
    assert write_if_possible(tmp_path / "new" / "x", "text")
    assert (tmp_path / "new" / "x").read_text() == "text"


def test_a_fault_of_ones_own_is_not_hidden(tmp_path: Path) -> None:
    def wrong(path: Path) -> None:
        raise ValueError("shape")

    with pytest.raises(ValueError, match="shape"):
        write_if_possible(tmp_path / "x", wrong)
