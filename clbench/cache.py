"""The user's cache, atomic writes, and tensor files with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.files import check_regular

if TYPE_CHECKING:
    from torch import Tensor


TENSORS_VERSION = 3
"""Increase it when the tensors given to `cached_tensors` are computed differently."""

Facts = dict[str, Any]
"""Facts about tensors, as plain JSON values."""


class DamagedFileError(Exception):
    """A file is missing, unreadable, or differs from what was written to it."""


def cache_dir(*parts: str) -> Path:
    """Return a folder of the user's cache, which may not exist yet.

    The cache is ``$CLBENCH_CACHE``, else ``$XDG_CACHE_HOME/clbench``, else ``~/.cache/clbench``.
    It only saves time and is safe to delete. Write to it with `write_if_possible`.
    """
    if own := os.environ.get("CLBENCH_CACHE"):
        return Path(own, *parts)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "clbench", *parts)


def write_if_possible(path: Path, content: bytes | str | Callable[[Path], None]) -> bool:
    """Write a cache file; return False if the disk is full or read-only."""
    try:
        write_atomically(path, content)
    except Exception as error:
        from safetensors import SafetensorError

        if not isinstance(error, OSError | SafetensorError):
            raise
        return False
    return True


def write_atomically(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Write a file whole or not at all: write a temporary one beside it and rename it.

    `content` is bytes, text (written as UTF-8), or a function that writes the file at its argument.
    A missing folder is created.
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


def save_tensors(tensors: Mapping[str, Tensor], path: Path, facts: Any = None) -> None:
    """Write a safetensors file of named tensors, with `facts` (plain JSON) and a checksum.

    Call it through `write_atomically` or `write_if_possible`. Tensors may be on any device; a
    tensor with several names is stored once per name.
    """
    from safetensors.torch import save_file

    # safetensors refuses tensors that share storage, so tied ones are copied.
    stored = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    storages: set[int] = set()
    for name, value in stored.items():
        storage = value.untyped_storage().data_ptr()
        if storage in storages:
            stored[name] = value.clone()
        storages.add(storage)
    text = json.dumps(facts)
    save_file(stored, path, metadata={"facts": text, "checksum": _checksum(stored, text)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors, on the CPU, and the facts that `save_tensors` wrote.

    Raises
    ------
    DamagedFileError
        If the file is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["facts"]
        if metadata["checksum"] == _checksum(tensors, text):
            return tensors, json.loads(text)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    raise DamagedFileError(f"{path} does not match its checksum")


def cached_tensors(
    kind: str, key: Mapping[str, Any], compute: Callable[[], tuple[dict[str, Tensor], Facts]]
) -> tuple[dict[str, Tensor], Facts]:
    """Return the cached result of `compute` for this key; compute and cache it if missing.

    `kind` is a folder of the cache; `key` holds everything that decides the tensors, as plain
    JSON values. `compute` returns tensors by name and facts about them; it also replaces a
    damaged file.
    """
    text = json.dumps([TENSORS_VERSION, key], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    path = cache_dir(kind) / f"{digest}.safetensors"
    with suppress(DamagedFileError):
        stored: tuple[dict[str, Tensor], Facts] = load_tensors(path)
        return stored
    tensors, facts = compute()
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_if_possible(path, partial(save_tensors, tensors, facts=facts))
    return tensors, facts


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    import torch

    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\0{name} {value.dtype} {list(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
