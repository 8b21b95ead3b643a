"""A run's folder: cell files under `cells/` or packed, the suite, `scores.csv`, and a lock.

Every file is written under a temporary name and renamed, so a process that is killed at any moment
leaves the old file or the new one. Temporary files end in ``.part``; the next run removes them.
"""

import csv
import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from clbench.core.errors import RunFolderError, named
from clbench.core.files import as_folder_error, locked, plain, read_file, write_atomically
from clbench.results.archive import ARCHIVE, cell_files, extract, read_archive
from clbench.results.cell import SCHEMA_VERSION, CellResult
from clbench.results.reading import (
    BrokenFile,
    Cells,
    garbage_collection_paused,
    listed_keys,
    read_cell,
    table_order,
)
from clbench.results.resume import conflicts, merge_suites, parse_suite
from clbench.results.statistics import ALPHA, look_at, spend
from clbench.suite.plan import Cell
from clbench.suite.schema import Question

FORMAT = "clbench-run"


class Store:
    """The results in a run's folder `out`, which may not exist yet.

    Nothing is written before `lock` is entered. Reading needs no lock, so a run can be read while
    it is running.
    """

    def __init__(self, out: Path) -> None:
        self.out = Path(out)
        self.cells = self.out / "cells"
        self.suite_path = self.out / "suite.json"
        self.scores_path = self.out / "scores.csv"

    @contextmanager
    def lock(self) -> Iterator[Self]:
        """Lock the folder against other processes and remove half-written files.

        A folder created here is removed again if an error occurs before `write_suite`.

        Raises
        ------
        RunFolderError
            If another process holds the lock, or the folder cannot be created; see also `check`.
        """
        self.check()
        with locked(self.out, marker=self.suite_path):
            with as_folder_error(self.out):
                self.cells.mkdir(exist_ok=True)
            yield self

    def read(
        self,
        *,
        set_aside: Container[str] = (),
        transform: Callable[[CellResult], CellResult] | None = None,
    ) -> Cells:
        """Return all cells in the order of the suite's scenarios, methods and seeds.

        Parameters
        ----------
        set_aside
            Keys whose files are moved to ``cells/broken/`` if they are broken; requires the lock.
        transform
            Applied to every cell as it is read, scenario by scenario, such as
            `clbench.results.cell.summarizer`.

        Raises
        ------
        RunFolderError
            If a file was written by a newer version.
        """
        suite = self.read_suite()
        model = suite.get("model_name")  # cells of earlier versions may have a path
        names = [table.get("name", "") for table in suite.get("scenario", [])]
        position = {name: i for i, name in enumerate(names)}

        def file_order(path: Path) -> tuple[int, str]:
            return position.get(path.name.partition("--")[0], len(position)), path.name

        listed = self._listed()  # first: a run may add cells meanwhile
        content, files = Cells(), {path.name: path for path in cell_files(self.out)}
        packed = read_archive(self.out)
        paths = {name: self.out / ARCHIVE / name for name in packed} | files
        untrained: dict[str, int] = {}  # tasks of each scenario without a stage: the pretraining
        with garbage_collection_paused():
            for path in sorted(paths.values(), key=file_order):
                is_file = path.name in files
                cell = read_cell(path, None if is_file else packed[path.name])
                if isinstance(cell, CellResult):
                    if model:
                        cell = cell.model_copy(update={"model": model})
                    if cell.is_scored:
                        untrained[cell.scenario] = len(cell.tasks) - len(cell.stages)
                    content.cells.append(transform(cell) if transform else cell)
                    continue
                moves = is_file and path.stem in set_aside
                moved_to = self._move(path, "broken") if moves else None
                content.broken.append(BrokenFile(path, cell, moved_to))
        keys = listed_keys(listed, untrained)
        content.missing.extend(key for key in keys if f"{key}.json" not in paths)
        content.broken.sort(key=lambda file: file.path)
        content.cells.sort(key=table_order(names, suite.get("methods", [])))
        return content

    def finished(
        self,
        cells: Sequence[Cell],
        *,
        results: Iterable[CellResult] | None = None,
        can_replace: bool = True,
    ) -> set[str]:
        """Return the keys of the cells that are finished; failed ones are run again.

        `results` are the cells that `read` returned, if it was called already. `can_replace` says
        whether the command has an option ``--replace``.

        Raises
        ------
        RunFolderError
            If the folder holds finished cells with other settings. Names the first of them.
        """
        results = self.read().cells if results is None else list(results)
        if different := conflicts(cells, results):
            key, difference = next(iter(different.items()))
            more = len(different) - 1
            others = f" (and {more} more cell{'s' if more > 1 else ''})" if more else ""
            again = named("replace", True)
            replace = f", or {again} to run again and keep the old files in cells/replaced/"
            path = self._cell_path(key)
            path = path if path.exists() else self.out / ARCHIVE / path.name
            raise RunFolderError(
                f"{path} {difference}{others}. Choose another {named('out')}"
                f"{replace if can_replace else ''}."
            )
        return {cell.key for cell in cells} & {cell.key for cell in results if cell.status == "ok"}

    def replace(self, cells: Sequence[Cell]) -> list[str]:
        """Move the cells that conflict with `cells` to ``cells/replaced/``; return their keys.

        An archive is unpacked for this.
        """
        keys = list(conflicts(cells, self.read().cells))
        if keys:
            extract(self.out)
        for key in keys:
            self._move(self._cell_path(key), "replaced")
        return keys

    def write_cell(self, cell: CellResult) -> Path:
        """Write the cell's file whole or not at all, and return its path."""
        path = self._cell_path(cell.key)
        write_atomically(path, cell.to_json())
        return path

    def write_suite(self, resolved: Mapping[str, Any]) -> None:
        """Write ``suite.json``: the suite with the command's options.

        What earlier runs in this folder had besides is kept, see `merge_suites`.

        Raises a RunFolderError if the folder holds a run of another suite.
        """
        self.check(resolved.get("name"))
        before = self.read_suite()
        if self.suite_path.exists() and not before:  # damaged: it may hold looks
            with as_folder_error(self.out):
                self.suite_path.replace(self._put_aside)
        suite = plain(merge_suites(before, resolved))
        content = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "suite": suite}
        write_atomically(self.suite_path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    @property
    def _put_aside(self) -> Path:
        return self.suite_path.with_name("suite.broken.json")

    def is_suite_damaged(self) -> bool:
        """Whether ``suite.json`` is missing, cannot be read, or replaced one that could not be."""
        return self._put_aside.exists() or not self.read_suite()

    def read_suite(self) -> dict[str, Any]:
        """Return the resolved suite; empty if it is missing or unreadable."""
        return parse_suite(_read_json(self.suite_path))

    def questions(self) -> list[Question]:
        """Return the primary questions that the run was started with, in order; at least one."""
        questions = [Question(**table) for table in self.read_suite().get("questions", [])]
        return questions or [Question()]

    def looks(self) -> list[int]:
        """Return the numbers of seeds after which the run is looked at; empty for other runs."""
        looks: list[list[int]] = self.read_suite().get("looks", [])
        return looks[0] if looks else []

    def alpha(self, seeds: int) -> float:
        """Return the error rate of the run's comparisons at a number of seeds.

        It is `ALPHA` for a run without looks, else the share of the look at these seeds.
        """
        looks = self.looks()
        return spend(looks)[look_at(looks, seeds)] if looks else ALPHA

    def read_pictures(self) -> dict[str, dict[str, Any]]:
        """Return the data for `clbench.figures.inputs` by scenario, where there is any."""
        suffix = ".picture.json"
        files = sorted((self.out / "scenarios").glob(f"*{suffix}"))
        pictures = {path.name.removesuffix(suffix): _read_json(path) for path in files}
        return {name: data for name, data in pictures.items() if isinstance(data, dict)}

    def write_scores(self, text: str, stamps: Mapping[str, tuple[int, int]] | None = None) -> None:
        """Write ``scores.csv``.

        A process that does not hold the lock gives the `stamps` that it read before the cells. The
        table is then dated as the newest of these cells, so that one written since is newer.
        """
        write_atomically(self.scores_path, text)
        if stamps:
            newest = max(time for time, _ in stamps.values())
            os.utime(self.scores_path, ns=(newest, newest))

    def _listed(self) -> list[dict[str, str]]:
        """Return the rows of ``scores.csv``; none if it cannot be read."""
        with suppress(OSError, ValueError, csv.Error):
            return list(csv.DictReader(read_file(self.scores_path).decode().splitlines()))
        return []

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Return modification time (ns) and size of each cell file and of the archive, by name."""
        paths = [*cell_files(self.out), self.out / ARCHIVE]
        stats = {path.name: path.stat() for path in paths if path.exists()}
        return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}

    def require(self) -> None:
        """Raise a RunFolderError unless the folder exists and has cells, in files or packed."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self.out.stat()  # an unusable path raises, for which `is_dir` is False in Python 3.14
        if self.cells.is_dir() or (self.out / ARCHIVE).is_file():
            return
        problem = f"There is no folder {self.out}"
        if self.out.exists():
            no_run = f"holds no run: it has no folder cells/ and no {ARCHIVE}"
            problem = f"{self.out} {no_run if self.out.is_dir() else 'is a file'}"
        raise RunFolderError(f"{problem}. Give the folder of a run.")

    def check(self, suite: str | None = None, looks: Sequence[int] | None = None) -> None:
        """Raise a RunFolderError unless a run of the suite with this name may write here.

        `looks` must be those that the run was started with, before its first cell: others would
        break its error rate.
        """
        problem, content = None, _read_json(self.suite_path)
        known = parse_suite(content)
        before, name = known.get("looks", []), known.get("name")
        if None not in (suite, name) and suite != name:
            problem = f"{self.out} holds a run of the suite {name!r}, not of {suite!r}"
        elif looks is not None and before and list(looks) != before[0]:
            started = ",".join(map(str, before[0]))
            problem = (
                f"{self.out} was started with "
                f"{named('seeds', f'until-settled:{started}')}, which cannot change"
            )
        elif looks and not before and self.stamps():
            problem = (
                f"{self.out} holds cells of a run without looks. Looks must be declared before the "
                "first result"
            )
            if self.suite_path.exists() and not known:
                problem = f"{self.suite_path} cannot be read, so the looks of its run are unknown"
        elif self.out.exists() and not self.out.is_dir():
            problem = f"{self.out} is a file, not a folder"
        elif isinstance(content, dict) and content.get("format") != FORMAT:
            problem = f"{self.suite_path} was not written by clbench and would be overwritten"
        elif any(
            path.exists() and not path.is_file() for path in (self.suite_path, self.scores_path)
        ):
            problem = f"{self.suite_path} or {self.scores_path.name} is not a file"
        elif self.scores_path.exists() and not (self.suite_path.exists() or self.cells.exists()):
            problem = f"{self.scores_path} belongs to no run and would be overwritten"
        if problem:
            raise RunFolderError(f"{problem}. Choose another {named('out')}.")

    def _cell_path(self, key: str) -> Path:
        return self.cells / f"{key}.json"

    def _move(self, path: Path, folder: str) -> Path:
        target, number = self.cells / folder / path.name, 1
        while target.exists():
            number += 1
            target = target.with_name(f"{path.stem}.{number}{path.suffix}")
        with as_folder_error(self.out):
            target.parent.mkdir(exist_ok=True)
            path.replace(target)
        return target.relative_to(self.out)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return None
