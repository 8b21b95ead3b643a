"""Where computed things that can be computed again are kept, and how files are written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """A folder of the user's cache, which need not exist yet.

    ``$CLBENCH_CACHE``, else ``$XDG_CACHE_HOME/clbench``, else ``~/.cache/clbench``. It holds
    tokenised rows and embeddings; deleting it loses nothing but time. Write to it by `keep`.
    """
    own = os.environ.get("CLBENCH_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    root = Path(own) if own else (Path(xdg) if xdg else Path.home() / ".cache") / "clbench"
    return root.joinpath(*parts)


def keep(path: Path, content: bytes | str | Callable[[Path], None]) -> bool:
    """Write a file of a cache, if that is possible.

    A full disk or a home that cannot be written costs time, not the run.

    Returns
    -------
    bool
        Whether it was written.
    """
    try:
        atomic_write(path, content)
    except Exception as fault:
        from safetensors import SafetensorError

        if not isinstance(fault, (OSError, SafetensorError)):
            raise
        return False
    return True


def atomic_write(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Write `path` whole or not at all: under a temporary name beside it, then renamed.

    Parameters
    ----------
    path
        The file; its folder is made if missing.
    content
        Bytes, text (UTF-8), or a function that writes the file of the path it is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        if callable(content):
            content(temporary)
        elif isinstance(content, str):
            temporary.write_text(content, encoding="utf-8")
        else:
            temporary.write_bytes(content)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
