"""A run's folder: cells under `cells/`, the resolved suite, `scores.csv`, and a lock.

Every file is written under a temporary name and renamed, so that a process killed at any
moment leaves the old file or the new one. What a killed process left half-written bears
the suffix ``.part`` and is removed by the next one.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clbench.errors import RunFolderError
from clbench.messages import describe_errors
from clbench.results.cell import SCHEMA_VERSION, CellResult, plain
from clbench.results.conflicts import Wanted, conflicts
from clbench.results.files import as_folder_error, locked, write_text

FORMAT = "clbench-run"


@dataclass(frozen=True)
class Broken:
    """A file under `cells/` that holds no cell.

    Attributes
    ----------
    path
        Where it lies, or lay before it was put aside.
    fault
        What is wrong with it.
    kept
        Where it was put, from the run's folder on; None where it was left.
    """

    path: Path
    fault: str
    kept: Path | None = None

    def __str__(self) -> str:
        kept = f"; kept as {self.kept}" if self.kept else ""
        return f"{self.path} is no finished cell ({self.fault}){kept}."


@dataclass(frozen=True)
class Cells:
    """What was read of a folder: the cells in order, and the files that hold none."""

    cells: list[CellResult] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)

    def broken_lines(self, wanted: Container[str]) -> list[str]:
        """A line for each broken file, with what becomes of it when `wanted` cells are run."""
        return [
            f"{file} It {'will be run again' if file.path.stem in wanted else 'is left out'}."
            for file in self.broken
        ]


class Store:
    """The cells of one run's folder.

    Nothing is written or made before `lock` is entered; reading needs no lock, so a run
    can be looked at while it goes on.

    Parameters
    ----------
    out
        The run's folder; need not exist yet.
    """

    def __init__(self, out: Path) -> None:
        self.out = Path(out)
        self.cells = self.out / "cells"
        self.suite_path = self.out / "suite.json"
        self.scores_path = self.out / "scores.csv"

    @contextmanager
    def lock(self) -> Iterator[Store]:
        """Keep other processes from running in the folder; remove what a killed one left.

        The lock goes with the process, also when it is killed. A folder that was made here
        is removed again if an error comes before the run has begun (before `write_suite`).

        Raises
        ------
        RunFolderError
            If another process has the lock, the folder cannot be made, or it holds files
            of something else under the names that a run would write.
        """
        self.check()
        with locked(self.out, begun=self.suite_path):
            with as_folder_error(self.out):
                self.cells.mkdir(exist_ok=True)
            yield self

    def read(
        self,
        *,
        set_aside: Container[str] = (),
        each: Callable[[CellResult], CellResult] | None = None,
    ) -> Cells:
        """All cells, in the order of the suite's scenarios, methods and seeds.

        Parameters
        ----------
        each
            Makes of every cell what is kept of it, such as
            `clbench.results.without_curves.Light`; it is called scenario by scenario.
        set_aside
            Keys whose files are moved to ``cells/broken/`` if they hold no cell; only with the
            lock held. Other files are left where they are.

        Raises
        ------
        RunFolderError
            If a file was written by a newer version, which must not be run over.
        """
        found = Cells()
        scenarios, methods = self._suite_order()
        for path, read in self._read_all(scenarios, each):
            if isinstance(read, CellResult):
                found.cells.append(read)
                continue
            kept = self._move(path, "broken") if path.stem in set_aside else None
            found.broken.append(Broken(path, read, kept and kept.relative_to(self.out)))
        found.broken.sort(key=lambda file: file.path)
        found.cells.sort(
            key=lambda cell: (
                scenarios.get(cell.scenario, len(scenarios)),
                cell.scenario,
                cell.reference_of is not None,
                methods.get(cell.baseline, len(methods)),
                cell.baseline,
                cell.seed,
                cell.reference_of or 0,
            )
        )
        return found

    def finished(
        self, wanted: Sequence[Wanted], *, present: Iterable[CellResult] | None = None
    ) -> set[str]:
        """Keys of the wanted cells that need not be run; failed ones are run again.

        Parameters
        ----------
        wanted
            The cells asked for.
        present
            What `read` found, where it was called already.

        Raises
        ------
        RunFolderError
            If the folder holds finished cells of other settings; names the first of them,
            what differs, and what can be done.
        """
        cells = self.read().cells if present is None else list(present)
        clashing = conflicts(wanted, cells)
        if clashing:
            first, more = clashing[0], len(clashing) - 1
            others = f" ({more} more cell{'s' if more > 1 else ''} likewise)" if more else ""
            raise RunFolderError(
                f"{self._cell_path(first.cell.key)} {first.difference}{others}. Take another "
                "--out, or --replace to run again and keep the old files in cells/replaced/."
            )
        done = {cell.key for cell in cells if cell.status == "ok"}
        return {cell.key for cell in wanted if cell.key in done}

    def replace(self, wanted: Sequence[Wanted]) -> list[str]:
        """Move the cells that `finished` would object to into ``cells/replaced/``.

        Returns
        -------
        list of str
            Their keys; nothing is deleted.
        """
        clashing = conflicts(wanted, self.read().cells)
        for found in clashing:
            self._move(self._cell_path(found.cell.key), "replaced")
        return [found.cell.key for found in clashing]

    def write_cell(self, cell: CellResult) -> Path:
        """Write the cell's file, whole or not at all."""
        path = self._cell_path(cell.key)
        self._write(path, cell.to_json())
        return path

    def write_suite(self, resolved: Mapping[str, Any]) -> None:
        """Write ``suite.json``: the suite as it is run, options of the command included.

        The commands of a run that was made by several are all kept.

        Raises
        ------
        RunFolderError
            If the folder holds the run of another suite.
        """
        self.check(resolved.get("name"))
        commands = [*self.read_suite().get("commands", []), *resolved.get("commands", [])]
        once = list({json.dumps(words): words for words in commands}.values())
        suite = plain({**resolved, "commands": once})
        content = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "suite": suite}
        self._write(self.suite_path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def read_suite(self) -> dict[str, Any]:
        """The resolved suite; empty when there is none or it cannot be read."""
        content = _json(self.suite_path)
        suite = content.get("suite") if isinstance(content, dict) else None
        return suite if isinstance(suite, dict) else {}

    def read_pictures(self) -> dict[str, dict[str, Any]]:
        """What the figures of shifts are drawn from, by scenario; those that have none left out."""
        found = {}
        for path in sorted((self.out / "scenarios").glob("*.picture.json")):
            picture = _json(path)
            if isinstance(picture, dict):
                found[path.name.removesuffix(".picture.json")] = picture
        return found

    def write_scores(self, text: str) -> None:
        """Write ``scores.csv``."""
        self._write(self.scores_path, text)

    def require(self) -> None:
        """Check that the folder holds a run.

        Raises
        ------
        RunFolderError
            If it does not exist or has no ``cells/``.
        """
        if self.out.is_file():
            raise RunFolderError(f"{self.out} is a file. Name the folder of a run, its --out.")
        if not self.out.is_dir():
            raise RunFolderError(f"There is no folder {self.out}. Name the --out of a run.")
        if not self.cells.is_dir():
            raise RunFolderError(f"{self.out} holds no run: it has no folder cells/.")

    def check(self, suite: str | None = None) -> None:
        """Check that a run may write there, without writing.

        Parameters
        ----------
        suite
            Name of the suite that is to be run.

        Raises
        ------
        RunFolderError
            If the path is a file, holds the run of another suite, or holds files of
            something else under the names that a run would write.
        """
        present = self.read_suite().get("name")
        if None not in (suite, present) and suite != present:
            raise RunFolderError(
                f"{self.out} holds a run of the suite {present!r}, not of {suite!r}. "
                "Take another --out."
            )
        if self.out.exists() and not self.out.is_dir():
            raise RunFolderError(f"{self.out} is a file, not a folder. Take another --out.")
        content = _json(self.suite_path) if self.suite_path.exists() else None
        if isinstance(content, dict) and content.get("format") != FORMAT:
            raise RunFolderError(
                f"{self.suite_path} was not written by clbench and would be overwritten. "
                "Take another --out."
            )
        if self.scores_path.exists() and not self.suite_path.exists() and not self.cells.exists():
            raise RunFolderError(
                f"{self.scores_path} belongs to no run and would be overwritten. "
                "Take another --out."
            )

    def _suite_order(self) -> tuple[dict[str, int], dict[str, int]]:
        suite = self.read_suite()
        tables, methods = _listed(suite, "scenario"), _listed(suite, "methods")
        names = [table.get("name") for table in tables if isinstance(table, dict)]
        return _positions(names), _positions(methods)

    def _cell_path(self, key: str) -> Path:
        return self.cells / f"{key}.json"

    def _read_all(
        self, order: Mapping[str, int], each: Callable[[CellResult], CellResult] | None
    ) -> list[tuple[Path, CellResult | str]]:
        def place(path: Path) -> tuple[int, str]:
            return order.get(path.name.partition("--")[0], len(order)), path.name

        paths = [path for path in self.cells.glob("*.json") if path.name[0] != "."]
        with _no_collector():
            return [(path, _read_cell(path, each)) for path in sorted(paths, key=place)]

    def _move(self, path: Path, folder: str) -> Path:
        target = self.cells / folder / path.name
        number = 1
        while target.exists():
            number += 1
            target = target.with_name(f"{path.stem}.{number}{path.suffix}")
        with as_folder_error(self.out):
            target.parent.mkdir(exist_ok=True)
            path.replace(target)
        return target

    def _write(self, path: Path, text: str) -> None:
        write_text(path, text)


def _read_cell(
    path: Path, each: Callable[[CellResult], CellResult] | None = None
) -> CellResult | str:
    """The cell, or what is wrong with its file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as fault:
        return str(fault.strerror or fault)
    except ValueError:
        return "broken off or no JSON"
    try:
        cell = CellResult.model_validate_json(text)
    except ValidationError as fault:
        return _what_is_wrong(path, text, fault)
    if cell.key != path.stem:
        return f"holds the cell {cell.key!r}"
    return cell if each is None else each(cell)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Records hold no cycles, and to look for some among them takes half of the reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _what_is_wrong(path: Path, text: str, fault: ValidationError) -> str:
    """Why a file holds no cell.

    Raises
    ------
    RunFolderError
        If it was written by a newer version.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return "broken off or no JSON" if text else "empty"
    if not isinstance(content, dict) or "schema_version" not in content:
        return "not written by clbench"
    version = content["schema_version"]
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} was written by a newer clbench (schema {version}; this one reads "
            f"{SCHEMA_VERSION}). Update clbench, or take another --out."
        )
    return describe_errors(fault)[0][:200]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _listed(table: Mapping[str, Any], key: str) -> list[Any]:
    value = table.get(key)
    return value if isinstance(value, list) else []


def _positions(names: Iterable[Any]) -> dict[str, int]:
    return {str(name): position for position, name in enumerate(names)}
