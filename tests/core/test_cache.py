from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from clbench.core import files
from clbench.core.files import write_if_possible

FACTS = {"loss": 0.25, "texts": ["a", "ß"], "none": None}


def full(path: Path) -> None:
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device", str(path))


def truncated(path: Path) -> None:
    raise SafetensorError("I/O error: File too large")


@pytest.mark.parametrize("write", [full, truncated])
def test_a_full_disk_does_not_stop_the_run(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
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
    files.save_tensors(tensors, tmp_path / "file", FACTS)
    loaded, facts = files.load_tensors(tmp_path / "file")
    assert facts == FACTS
    assert loaded.keys() == tensors.keys()
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype
        torch.testing.assert_close(loaded[name], value.detach(), rtol=0, atol=0, equal_nan=True)


def test_any_changed_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.save_tensors({"a": torch.rand(5), "b": torch.arange(3)}, path, FACTS)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for flip in (1, 0x80):
            changed = bytearray(whole)
            changed[position] ^= flip
            path.write_bytes(changed)
            with pytest.raises(files.DamagedFileError):
                files.load_tensors(path)
    for part in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(part)
        with pytest.raises(files.DamagedFileError):
            files.load_tensors(path)
    path.write_bytes(whole)
    assert files.load_tensors(path)[1] == FACTS


def test_files_without_a_checksum_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "plain")
    for name in ("plain", "missing", "."):
        with pytest.raises(files.DamagedFileError):
            files.load_tensors(tmp_path / name)
