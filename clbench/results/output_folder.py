"""Lock output folders, write their files, and report write errors in one line."""

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
from clbench.files import remedy


@contextmanager
def as_folder_error(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into a RunFolderError of one line."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}. "
            f"{remedy(error).capitalize()}, or choose another --out."
        ) from error


def check_folder(out: Path) -> None:
    """Raise a RunFolderError if `out` cannot be written or created; writes nothing."""
    with as_folder_error(out):
        place = next(path for path in (out, *out.absolute().parents) if path.exists())
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{place} is not a folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"{place} is read-only")


@contextmanager
def locked(out: Path, *, marker: Path) -> Iterator[None]:
    """Lock the folder `out` against other processes and remove half-written files.

    The lock is released when the process ends, even if it is killed. A folder created here is
    removed again if an error occurs before the file `marker` exists.

    Raises
    ------
    RunFolderError
        If another process holds the lock, or the folder cannot be created.
    """
    check_folder(out)
    new_folders = [path for path in (out, *out.parents) if not path.exists()]
    with as_folder_error(out):
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with as_folder_error(out):
            _acquire(handle, out)
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


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, and flush it to the disk.

    Raises
    ------
    RunFolderError
        If the file cannot be written.
    """

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    with as_folder_error(path):
        write_atomically(path, write)


def _acquire(handle: int, out: Path) -> None:
    """Lock the open file and write this process's id and host into it.

    Ray's workers compare this text to find out whether they see the same folder.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip()
        raise RunFolderError(
            f"{out} is in use by another clbench process{f' ({holder})' if holder else ''}. "
            "Wait until it ends, or choose another --out."
        ) from error
    except (ImportError, OSError) as error:
        # Windows and some network file systems have no such locks; runs there go unlocked.
        unsupported = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
        if isinstance(error, OSError) and error.errno not in unsupported:
            raise
        return
    holder = f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M}\n"
    os.ftruncate(handle, 0)
    os.pwrite(handle, holder.encode(), 0)
