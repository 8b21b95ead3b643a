"""Paths and files that users name, checked where they enter."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from clbench.errors import DataError
from clbench.messages import format_value


def user_path(text: str | Path, what: str, base: Path = Path()) -> Path:
    """Return a path as the user wrote it, from the folder `base`, with ``~`` expanded.

    Raises a DataError that begins with `what`, such as ``--out``, if no file can have that path:
    it is too long, a loop of links, or has a NUL character.
    """
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


def remedy(error: OSError) -> str:
    """Return what the user can do about a system error, such as ``free some space``."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "change the permissions"
    return "check the path"
