"""Packed runs: the same cells to the byte, and one line for a damaged archive."""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path

import pytest
from helpers.handmade import PlannedCell, failed, pair
from helpers.report_runs import make_run

from clbench import load_run
from clbench.core.errors import RunFolderError
from clbench.results.archive import ARCHIVE, pack, read_archive, unpack
from clbench.results.score_tables import to_csv
from clbench.results.store import Store

KEY = "sst2-mrpc--vanilla--seed0"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


def test_a_packed_run_is_read_like_its_folder(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    before, run = contents(folder), load_run(folder)
    assert pack(folder) == folder / ARCHIVE
    assert {path.name for path in folder.iterdir()} == {".lock", ARCHIVE, "suite.json"}
    assert load_run(folder).cells == run.cells
    assert read_archive(folder) == before
    unpack(folder)
    assert contents(folder) == before
    assert not (folder / ARCHIVE).exists()


def test_equal_cells_give_equal_archives_that_tar_reads(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / name) for name in ("one", "two"))
    before = contents(one)
    for path in reversed([*(two / "cells").iterdir()]):  # other times, another order on the disk
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    first = pack(one).read_bytes()
    assert first == pack(two).read_bytes()
    unpack(one)
    assert pack(one).read_bytes() == first
    with tarfile.open(one / ARCHIVE) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == sorted(f"cells/{name}" for name in before)
        assert {(member.mtime, member.uid, member.uname) for member in members} == {(0, 0, "")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A packed run of a finished and a failed cell."""
    with Store(tmp_path / "run").lock() as store:
        store.write_suite({"name": "s"})
        store.write_cell(pair())
        store.write_cell(failed("ewc"))
    pack(store.out)
    return store


def test_new_cells_are_files_and_stand_before_packed_ones(store: Store) -> None:
    assert store.finished([PlannedCell()]) == {KEY}
    before = store.stamps()
    again = pair("ewc", 0, [[0.9, None], [0.6, 0.7]])
    store.write_cell(again)
    assert store.stamps() != before
    vanilla, ewc = sorted(store.read().cells, key=lambda cell: cell.method, reverse=True)
    assert (vanilla.status, ewc) == ("ok", again)
    pack(store.out)
    assert len(store.read().cells) == 2
    store.write_cell(pair())
    unpack(store.out)
    assert {*contents(store.out)} == {f"{KEY}.json", "sst2-mrpc--ewc--seed0.json"}
    assert store.read().cells[0] == again


def test_an_archive_is_a_result_that_looks_cannot_follow(store: Store) -> None:
    with pytest.raises(RunFolderError, match="holds cells of a run without looks"):
        store.check(looks=(3, 6))


def test_a_broken_cell_in_an_archive_is_named_and_run_again(store: Store) -> None:
    store.write_cell(failed("ewc"))
    (store.cells / f"{KEY}.json").write_text("{")
    pack(store.out)
    content = store.read(set_aside=[KEY])
    path = store.out / ARCHIVE / f"{KEY}.json"
    assert content.broken_lines([KEY]) == [
        f"{path} is not a valid cell file (truncated or not JSON). It will be run again."
    ]
    assert store.finished([PlannedCell()]) == set()


def test_a_cell_that_is_missing_in_an_archive_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    run = load_run(folder)
    Store(folder).write_scores(to_csv(run.frame))
    key = run.cells[0].key
    (folder / f"cells/{key}.json").unlink()
    pack(folder)
    assert Store(folder).read().missing == [key]
    with pytest.warns(
        UserWarning, match=f"was made from cells that are missing: {key}. Restore them"
    ):
        assert str(load_run(folder)) == f"Run('{folder}': {len(run.cells) - 1} cells, 1 failed)"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: b"PK" + data,
        lambda data: lzma.compress(b"no tar" * 200),
    ],
    ids=["empty", "cut", "a flipped bit", "no xz", "no tar"],
)
def test_a_damaged_archive_is_refused_in_a_line(store: Store, spoil: object) -> None:
    path = store.out / ARCHIVE
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    for call in (store.read, lambda: unpack(store.out), lambda: pack(store.out)):
        with pytest.raises(RunFolderError, match=rf"{ARCHIVE} is damaged \(.*Restore it"):
            call()
    assert path.exists()


def test_members_are_never_written_where_they_point(store: Store, tmp_path: Path) -> None:
    content = io.BytesIO()
    strange = ["../../evil.json", "/evil.json", "cells/../evil.json", "cells/", "evil.json"]
    strange += ["cells/C:evil.json", r"cells/a\..\..\..\evil.json"]  # paths on Windows
    names = [*strange, f"cells/{KEY}.json"]
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"{}"))
        link = tarfile.TarInfo("cells/link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (store.out / ARCHIVE).write_bytes(lzma.compress(content.getvalue()))
    assert read_archive(store.out) == {f"{KEY}.json": b"{}"}
    unpack(store.out)
    assert {*contents(store.out)} == {f"{KEY}.json"}
    assert not [*tmp_path.rglob("evil.json")]


def packed(*names: str, end: int = 1024) -> bytes:
    """Return a tar of empty members, and zeros at its end."""
    members = (tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT) for name in names)
    return b"".join(members) + bytes(end)


@pytest.mark.parametrize(
    "content",
    [
        lzma.compress(packed("cells/a.json", end=0)) + lzma.compress(packed("evil.sh")),
        lzma.compress(packed("cells/a.json", end=0) + b"x" * 512 + packed("evil.sh")),
        lzma.compress(packed("cells/a.json") + packed("evil.sh")),
    ],
    ids=["a second stream", "after a block that is no header", "after the end"],
)
def test_no_member_hides_behind_the_last_one(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(content)
    with pytest.raises(RunFolderError, match=r"is damaged \(.* follows its"):
        read_archive(tmp_path)


def test_zeros_may_follow_the_last_member_and_the_archive(tmp_path: Path) -> None:
    content = lzma.compress(packed("cells/a.json", end=10240)) + bytes(8)  # padding of xz
    (tmp_path / ARCHIVE).write_bytes(content)
    assert read_archive(tmp_path) == {"a.json": b""}


def test_a_small_archive_does_not_grow_in_memory(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("cells/a.json").tobuf(tarfile.GNU_FORMAT))
    sparse = b"%011o\0%011o\0" % (0, 2)  # two bytes at 0
    fields = {
        124: b"%011o\0" % 2,
        148: b" " * 8,
        156: b"S",
        386: sparse,
        483: b"%011o\0" % (1 << 31),
    }
    for at, text in fields.items():
        header[at : at + len(text)] = text
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / ARCHIVE).write_bytes(lzma.compress(header + b"{}".ljust(512, b"\0") + bytes(1024)))
    with pytest.raises(RunFolderError, match=r"is damaged .*sparse"):
        read_archive(tmp_path)


def test_there_must_be_something_to_pack(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="has no cells"):
        pack(tmp_path / "none")
    assert not [*tmp_path.iterdir()]
