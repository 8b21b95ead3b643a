"""Cells of a run's folder as they are read: valid, broken or missing, and their order."""

import gc
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clbench.core.errors import MOST_NAMES, RunFolderError, count, describe_errors, join_names
from clbench.core.files import read_file
from clbench.results.cell import SCHEMA_VERSION, CellResult


@dataclass(frozen=True)
class BrokenFile:
    """A file under `cells/` without a valid cell, and where it was moved in the run's folder."""

    path: Path
    error: str
    moved_to: Path | None = None

    def line(self, remedy: str) -> str:
        """Return a line on the file, which ends with what becomes of it or what to do."""
        where = f"; moved to {self.moved_to}" if self.moved_to else ""
        return f"{self.path} is not a valid cell file ({self.error}){where}. {remedy}"


@dataclass(frozen=True)
class Cells:
    """The cells of a folder in order, its broken files, and keys in its table without a file."""

    cells: list[CellResult] = field(default_factory=list)
    broken: list[BrokenFile] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def broken_lines(self, rerun: Container[str]) -> list[str]:
        """Return notes on broken and missing files; `rerun` are the keys that will run again."""
        lines = [
            file.line("It will be run again." if file.path.stem in rerun else "It is left out.")
            for file in self.broken[:MOST_NAMES]
        ]
        if rest := len(self.broken) - len(lines):
            lines.append(f"And {count(rest, 'more file')} like these.")
        if lost := [key for key in self.missing if key not in rerun]:
            lines.append(
                f"scores.csv was made from cells that are missing: {join_names(lost)}. Restore "
                "them, run the suite again, or delete the table if you have removed them."
            )
        return lines


def listed_keys(rows: Iterable[Mapping[str, str]], untrained: Mapping[str, int]) -> list[str]:
    """Return the keys of the cells behind rows of ``scores.csv``, up to one that is none.

    Those of single-task references follow from the scores that need them. They have the numbers of
    stages; `untrained` says how many tasks of a scenario have no stage.
    """
    keys: dict[str, None] = {}
    with suppress(ValueError, KeyError, TypeError):
        for row in rows:
            scenario, names = row["scenario"], [row["method"]]
            last = int(row.get("tasks") or 1) - 1 - untrained.get(scenario, 0)
            if row.get("intransigence"):
                names.append(f"reference{last}")
            if row.get("plasticity"):
                names += [f"reference{task}" for task in range(1, last)]
            seed = int(row["seed"])
            keys |= dict.fromkeys(f"{scenario}--{name}--seed{seed}" for name in names)
    return list(keys)


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Search for no reference cycles in the block: among thousands of cells it takes seconds."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def table_order(
    scenarios: Iterable[str], methods: Iterable[str]
) -> Callable[[CellResult], tuple[Any, ...]]:
    """Return the sort key of cells in tables: by scenario, method and seed, references last."""
    positions = [{name: i for i, name in enumerate(names)} for names in (scenarios, methods)]

    def key(cell: CellResult) -> tuple[Any, ...]:
        scenario, method = (
            (position.get(name, len(position)), name)
            for position, name in zip(positions, (cell.scenario, cell.baseline), strict=True)
        )
        is_reference = cell.reference_of is not None
        return scenario, is_reference, method, cell.seed, cell.reference_of or 0

    return key


def read_cell(path: Path, content: bytes | None) -> CellResult | str:
    """Return the cell of a file, or of its `content`, or a description of what is wrong with it."""
    try:
        cell = CellResult.model_validate_json(read_file(path) if content is None else content)
    except OSError as error:
        return str(error.strerror or error)
    except ValidationError as error:
        first = error.errors()[0]
        version = first["input"]
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        if first["loc"] == ("schema_version",) and newer:
            raise RunFolderError(
                f"{path} was written by a newer clbench (schema {version}; this one reads "
                f"{SCHEMA_VERSION}). Update clbench, or choose another folder."
            ) from error
        if first["type"] == "json_invalid":
            return "truncated or not JSON"
        return describe_errors(error)[0][:200]
    return cell if cell.key == path.stem else f"holds the cell {cell.key!r}"
