"""Files: the user's paths, atomic writes, the cache, tensors with a checksum, locked folders."""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from clbench.core.errors import DataError, RunFolderError, format_value, named

if TYPE_CHECKING:
    from torch import Tensor


def check_working_folder() -> None:
    """Raise a DataError if the working folder was deleted: hardly anything can be done there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise DataError("The working folder was deleted. Change to another folder.") from None


def user_path(text: str | Path, what: str, base: Path = Path()) -> Path:
    """Return a path as the user wrote it, from the folder `base`, with ``~`` expanded.

    Raises a DataError that begins with `what`, such as ``--out``, if no file can have that path:
    it is too long, a loop of links, or has a NUL character; or if the working folder was deleted.
    """
    check_working_folder()
    path = base / os.path.expanduser(text)  # noqa: PTH111 - pathlib's raises for an unknown ~user
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever reads or writes it says so
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"{what} {format_value(str(text))} is not a usable path: {reason}."
        ) from error
    return path


def check_regular(path: Path) -> None:
    """Raise an OSError for a pipe or device: reading it could wait or go on for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file; an OSError for anything else, such as a pipe."""
    check_regular(path)
    return path.read_bytes()


UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The first bytes of a text in UTF-16."""


def not_utf8(content: bytes, file: str) -> str:
    """Return the end of a message on a text that is not UTF-8, with the remedy; empty if it is."""
    try:
        content.decode()
        return ""
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
    name = "UTF-16" if content[:2] in UTF16 else "WINDOWS-1252"
    return (
        f", line {line}: is not UTF-8 but perhaps {name}. Save it as UTF-8: iconv -f {name} "
        f"-t UTF-8 {file} > NEW."
    )


def folders(names: Iterable[str]) -> dict[str, str]:
    """Return a name of a folder or file for each name, all different on every system."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        place = safe = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "model"
        taken, number = {*map(str.lower, found.values())}, len(found) + 1
        while place.lower() in taken:
            place, number = f"{safe}-{number}", number + 1
        found[name] = place
    return found


def digest(content: bytes | str | Path) -> str:
    """Return the hex digest of bytes, of a text or of a regular file: 16 bytes of BLAKE2b."""
    if isinstance(content, Path):
        check_regular(content)
        with content.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    data = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def remedy(error: OSError) -> str:
    """Return what the user can do about a system error, such as ``free some space``."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "change the permissions"
    return "check the path"


LOCK = ".lock"
MANIFEST = "manifest.json"
SUBMISSION = b'"clbench-submission"'
"""What the manifest of a submission has in it; others have files of this name, too."""
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
    except RunFolderError:
        return False
    return True


def write_atomically(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Write a file whole or not at all: write a temporary one beside it and rename it.

    `content` is bytes or text (as UTF-8), which is flushed to the disk, or a function that writes
    the file at its argument: a picture or a cache. A missing folder is created. Raises a
    RunFolderError if the file cannot be written.
    """
    with as_folder_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                if not callable(content):
                    file.write(content.encode() if isinstance(content, str) else content)
                    file.flush()
                    os.fsync(handle)
            if callable(content):
                content(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def save_tensors(tensors: Mapping[str, Tensor], path: Path, facts: Any = None) -> None:
    """Write a safetensors file of named tensors, with `facts` (plain JSON) and a checksum.

    Call it through `write_atomically` or `write_if_possible`. Tensors may be on any device; a
    tensor with several names is stored once per name. Raises an OSError if the disk is full.
    """
    from safetensors import SafetensorError
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
    try:
        save_file(stored, path, metadata={"facts": text, "checksum": _checksum(stored, text)})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors, on the CPU, and the facts that `save_tensors` wrote.

    Raises a DamagedFileError if the file is missing or damaged.
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
    from clbench.core.shapes import only_shapes

    if only_shapes():
        return compute()
    name = digest(json.dumps([TENSORS_VERSION, key], sort_keys=True))
    path = cache_dir(kind) / f"{name}.safetensors"
    with suppress(DamagedFileError):
        stored: tuple[dict[str, Tensor], Facts] = load_tensors(path)
        return stored
    tensors, facts = compute()
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_if_possible(path, partial(save_tensors, tensors, facts=facts))
    return tensors, facts


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    import torch

    hasher = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        hasher.update(f"\0{name} {value.dtype} {list(value.shape)}\0".encode())
        hasher.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


@contextmanager
def as_folder_error(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into a RunFolderError of one line."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}. "
            f"{remedy(error).capitalize()}, or choose another folder."
        ) from error


def check_folder(out: Path) -> None:
    """Raise a RunFolderError if `out` cannot be written or created, or is in a submission.

    Writes nothing.
    """
    with as_folder_error(out):
        places = (out, *out.absolute().parents)
        for place in places:
            with suppress(OSError):
                if SUBMISSION in read_file(place / MANIFEST):
                    raise RunFolderError(
                        f"{out} is in a submission, whose manifest lists all of its files. Choose "
                        f"another {named('out')}."
                    )
        place = next(path for path in places if path.exists())
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{place} is not a folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"{place} is read-only")


@contextmanager
def locked(out: Path, *, marker: Path) -> Iterator[None]:
    """Lock the folder `out` against other processes and remove half-written files.

    The lock is released when the process ends, even if it is killed. A folder created here is
    removed again if an error occurs before the file `marker` exists, unless another process has
    locked it first.

    Raises
    ------
    RunFolderError
        If another process holds the lock, or the folder cannot be created.
    """
    check_folder(out)
    new_folders = [path for path in (out, *out.parents) if not path.exists()]
    with as_folder_error(out):
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with as_folder_error(out):
            try:
                _acquire(handle, out)
            except RunFolderError:  # the process that holds the lock owns the folder
                new_folders.clear()
                raise
        for part in list(out.rglob(".*.part")):
            shutil.rmtree(part, ignore_errors=True)
            with suppress(OSError):
                part.unlink()
        yield
    except BaseException:
        if new_folders and not marker.exists():
            shutil.rmtree(out, ignore_errors=True)
            with suppress(OSError):  # stop at a parent that is in use by now
                for folder in new_folders[1:]:
                    folder.rmdir()
        raise
    finally:
        os.close(handle)


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yield a locked folder beside `out`, which becomes `out` at the end if it is not empty.

    What a killed process has left in it is removed at the start. Raises a RunFolderError if `out`
    is not empty or cannot be replaced, or another process is writing it.
    """
    with as_folder_error(out):
        out = out.resolve()
        if out.exists() and (out.is_file() or any(out.iterdir())):
            raise RunFolderError(f"{out} exists and is not empty. Give a new {named('out')}.")
        if out.exists() and (out.is_mount() or out == Path.cwd()):
            raise RunFolderError(f"{out} cannot be replaced. Give a new folder in it.")
    part = out.with_name(f".{out.name}.part")
    with suppress(_Unwritten), locked(part, marker=out):
        for old in part.iterdir():
            if old.name != LOCK:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        yield part
        with as_folder_error(out):
            (part / LOCK).unlink()
            if not any(part.iterdir()):
                raise _Unwritten
            part.rename(out)


class _Unwritten(Exception):  # noqa: N818
    """Nothing was written into a folder, so that it is removed."""


def _acquire(handle: int, out: Path) -> None:
    """Lock the open file and write this process's id and the time into it, but no host or user.

    Ray's workers compare this text to find out whether they see the same folder.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip()
        raise RunFolderError(
            f"{out} is in use by another clbench process{f' ({holder})' if holder else ''}. "
            f"Wait until it ends, or choose another {named('out')}."
        ) from error
    except (ImportError, OSError) as error:
        # Windows and some network file systems have no such locks; runs there go unlocked.
        unsupported = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
        if isinstance(error, OSError) and error.errno not in unsupported:
            raise
        return
    holder = f"pid {os.getpid()} since {datetime.now():%Y-%m-%d %H:%M:%S.%f}\n"
    os.ftruncate(handle, 0)
    os.pwrite(handle, holder.encode(), 0)


def plain(value: Any) -> Any:
    """Return a copy of `value` in types that JSON can hold.

    NumPy scalars become Python numbers, tuples become lists, NaN and infinity become None.
    """

    def convert(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        if isinstance(value, Mapping):
            return dict(value)
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return json.loads(json.dumps(value, default=convert), parse_constant=lambda name: None)
