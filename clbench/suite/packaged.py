"""Suites, baselines and published tables that come with the package."""

from __future__ import annotations

from pathlib import Path

from clbench.errors import ClbenchError

_PACKAGE = Path(__file__).resolve().parent.parent


def suites() -> dict[str, Path]:
    """Packaged suite files by name, sorted."""
    return _files("scenarios")


def baselines() -> dict[str, Path]:
    """Packaged baseline files by name, sorted."""
    return _files("baselines")


def published() -> dict[str, Path]:
    """The papers' tables as CSV by name, sorted."""
    return _files("results/published", "*.csv")


def _files(kind: str, pattern: str = "*.toml") -> dict[str, Path]:
    return {path.stem: path for path in sorted(_folder(kind).glob(pattern))}


def _folder(kind: str) -> Path:
    """The folder inside an installed package, or the one beside it in a checkout."""
    for folder in (_PACKAGE / f"_{Path(kind).name}", _PACKAGE.parent / kind):
        if folder.is_dir():
            return folder
    raise ClbenchError(
        f"the folder of packaged {kind} is missing from {_PACKAGE}. Install clbench again."
    )
