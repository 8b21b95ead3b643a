"""All cells of a run in one compressed file, which is read like the folder ``cells/``.

``cells.tar.xz`` holds ``cells/KEY.json`` for each cell, as `tar` would pack them. Members are read
into memory and never extracted to the paths that they name.
"""

import io
import lzma
import re
import tarfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from clbench.core.errors import RunFolderError
from clbench.core.files import as_folder_error, locked, read_file, remedy, write_atomically

ARCHIVE = "cells.tar.xz"
CELL = re.compile(r"cells/[^/\\:.][^/\\:]*\.json")  # no path on Windows either
LARGEST = 1 << 30
"""Most bytes of an archive, unpacked; a thousand cells have ten million."""


def cell_files(folder: Path) -> list[Path]:
    """Return the cell files of a run that are not in its archive, by name."""
    return sorted((folder / "cells").glob("[!.]*.json"))


def strange_members(folder: Path) -> list[str]:
    """Return a line on each member of a run's archive that is not a cell, or is there twice.

    They are not read, but `tar` would extract them. Raises a RunFolderError as `read_archive`.
    """
    members = [member for member, _ in _members(folder)]
    names = Counter(member.name for member in members)
    lines = [
        f"{member.name!r} is not a cell."
        for member in members
        if not member.isfile() or not CELL.fullmatch(member.name)
    ]
    return lines + [f"{name!r} is there {n} times." for name, n in names.items() if n > 1]


def read_archive(folder: Path) -> dict[str, bytes]:
    """Return the files in the archive of a run's folder by name, ``KEY.json``; empty without one.

    Raises
    ------
    RunFolderError
        If the archive is damaged, larger than `LARGEST`, has sparse members or anything after the
        last one, or cannot be read.
    """
    files = {member.name: data for member, data in _members(folder) if member.isfile()}
    return {name.removeprefix("cells/"): files[name] for name in files if CELL.fullmatch(name)}


def _members(folder: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the members of a run's archive with their content; none without an archive."""
    path = folder / ARCHIVE
    if not path.exists():
        return []
    unpack = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        content = unpack.decompress(read_file(path), LARGEST)
        if not unpack.eof:
            is_short = unpack.needs_input
            raise lzma.LZMAError("cut short" if is_short else f"unpacks to over {LARGEST:,} bytes")
        if unpack.unused_data.strip(b"\0"):  # `tar` would read on
            raise lzma.LZMAError("something follows its end")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            members = list(archive)
            if content[archive.offset :].strip(b"\0"):
                raise tarfile.ReadError("something follows its last member")
            if any(member.issparse() for member in members):  # read, they can be of any size
                raise tarfile.ReadError("it has sparse members")
            files = [(m, archive.extractfile(m) if m.isfile() else None) for m in members]
            return [(member, file.read() if file else b"") for member, file in files]
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read: {error.strerror or error}. {remedy(error).capitalize()}."
        ) from error
    except (lzma.LZMAError, EOFError, tarfile.TarError) as error:
        raise RunFolderError(
            f"{path} is damaged ({error}). Restore it, or run the suite in another folder."
        ) from error


def pack(folder: str | Path) -> Path:
    """Move the cell files of a run into its archive, and return the archive's path.

    Equal files give equal archives. Cells that are in the archive already stay there, unless a
    file holds them anew. All verbs read the run as before.

    Raises
    ------
    RunFolderError
        If the folder has no cells, is in use, or cannot be written.
    """
    folder = Path(folder)
    with locked(folder, marker=folder / "suite.json"):
        return compress(folder)


def compress(folder: Path) -> Path:
    """Do the work of `pack` in a folder that is locked already."""
    path, files = folder / ARCHIVE, cell_files(folder)
    cells = read_archive(folder) | {file.name: read_file(file) for file in files}
    if not cells:
        raise RunFolderError(f"{folder} has no cells. Give the folder of a run.")
    with as_folder_error(path):
        write_atomically(path, _packed(cells))  # flushed: its sources are deleted next
        for file in files:
            file.unlink()
        with suppress(OSError):  # it also holds replaced or broken files
            (folder / "cells").rmdir()
    return path


def unpack(folder: str | Path) -> None:
    """Move the cells of a run's archive back into files, except those that a file holds anew.

    Raises
    ------
    RunFolderError
        If the archive is damaged, or the folder is in use or cannot be written.
    """
    folder = Path(folder)
    with locked(folder, marker=folder / "suite.json"):
        extract(folder)


def extract(folder: Path) -> None:
    """Do the work of `unpack` in a folder that is locked already."""
    known = {file.name for file in cell_files(folder)}
    with as_folder_error(folder / "cells"):
        for name, data in read_archive(folder).items():
            if name not in known:
                write_atomically(folder / "cells" / name, data)
        (folder / ARCHIVE).unlink(missing_ok=True)


def _packed(cells: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(cells):
            member = tarfile.TarInfo(f"cells/{name}")  # no time, no owner
            member.size = len(cells[name])
            archive.addfile(member, io.BytesIO(cells[name]))
    return lzma.compress(content.getvalue(), preset=9)
