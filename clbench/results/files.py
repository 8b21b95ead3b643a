"""Folders that a command writes: locked by one process, faults of the disk in one line."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from clbench.cache import write_atomically
from clbench.errors import RunFolderError


@contextmanager
def as_folder_error(path: Path) -> Iterator[None]:
    """What keeps a file of the run's folder from being written, as one line for the user."""
    try:
        yield
    except OSError as fault:
        raise RunFolderError(
            f"{path} cannot be written: {fault.strerror or fault}. Free space or rights there, "
            "or take another --out."
        ) from fault


@contextmanager
def locked(out: Path, *, begun: Path) -> Iterator[None]:
    """Keep other processes from writing into `out`; remove what a killed one left half-written.

    The lock goes with the process, also when it is killed. A folder that was made here is
    removed again if an error comes before the file `begun` is there.

    Raises
    ------
    RunFolderError
        If another process has the lock, or the folder cannot be made.
    """
    made = [path for path in (out, *out.parents) if not path.exists()]
    with as_folder_error(out):
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(handle, out)
        for part in list(out.rglob(".*.part")):
            _remove(part)
        yield
    except BaseException:
        if made and not begun.exists():
            shutil.rmtree(out, ignore_errors=True)
            with suppress(OSError):  # somebody else may have put something there
                for folder in made[1:]:
                    folder.rmdir()
        raise
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, and have it on the disk when this returns.

    Raises
    ------
    RunFolderError
        If it cannot be written.
    """

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    with as_folder_error(path):
        write_atomically(path, write)


def _acquire(handle: int, out: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on Windows; two runs in one folder are then the user's care
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as fault:
        holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip()
        raise RunFolderError(
            f"{out} is in use by another clbench process{f' ({holder})' if holder else ''}. "
            "Wait until it ends, or take another --out."
        ) from fault
    except OSError as fault:
        # Some network file systems know no locks; refusing to run there would help nobody.
        if fault.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        return
    line = f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M}\n"
    os.ftruncate(handle, 0)
    os.pwrite(handle, line.encode(), 0)


def _remove(part: Path) -> None:
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)
