"""The check of a built package refuses what lacks files or has foreign ones."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.package import IN_SDIST, IN_WHEEL, check_contents


def packages(folder: Path, more: str = "", lost: str = "") -> tuple[Path, Path]:
    """Write a sdist and a wheel of empty files."""
    wheel, sdist = folder / "clbench-1.0-py3-none-any.whl", folder / "clbench-1.0.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in {*IN_WHEEL, "clbench-1.0.dist-info/METADATA", more} - {lost, ""}:
            archive.writestr(name, "")
    with tarfile.open(sdist, "w:gz") as packed:
        for name in IN_SDIST - {lost}:
            packed.addfile(tarfile.TarInfo(f"clbench-1.0/{name}"), io.BytesIO())
    return sdist, wheel


def test_a_complete_package_passes(tmp_path: Path) -> None:
    assert check_contents(*packages(tmp_path)) == "1.0"


@pytest.mark.parametrize("name", sorted(IN_WHEEL | IN_SDIST))
def test_a_lost_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match=name):
        check_contents(*packages(tmp_path, lost=name))


@pytest.mark.parametrize("name", ["tests/test_api.py", "clbench/__pycache__/api.cpython-311.pyc"])
def test_a_foreign_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match=name if name.endswith("pyc") else "tests"):
        check_contents(*packages(tmp_path, more=name))
