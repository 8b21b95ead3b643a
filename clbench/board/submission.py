"""A submission as its checks see it, and what a check is."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from clbench.board.manifest import Manifest, read_manifest
from clbench.core.errors import ClbenchError, RunFolderError, explain
from clbench.results.archive import ARCHIVE
from clbench.results.cell import CellResult
from clbench.results.store import Store
from clbench.suite.read import packaged_files, read_suite
from clbench.suite.schema import SuiteFile

Lines = Iterator[str]


@dataclass(frozen=True)
class Outcome:
    """What a check found: what is `wrong`, what it could not check and why, and what it `says`."""

    wrong: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    says: str = ""


Find = Callable[["Submission"], Iterable[str] | Outcome]
"""A check: returns what is wrong, or an outcome."""


def make_checks(
    checks: Mapping[str, Find], submission: "Submission"
) -> Iterator[tuple[str, Outcome]]:
    """Yield each check by name with what it finds; a submission that cannot be read is wrong.

    What stops several checks, such as a damaged file, is wrong in the first of them alone; the
    others are not checked.
    """
    told: dict[str, str] = {}  # each line on what is wrong, with the check that said it first
    for name, find in checks.items():
        outcome = Outcome()
        try:
            found = find(submission)
            if isinstance(found, Outcome):
                outcome = found
            else:
                for line in found:
                    outcome.wrong.append(line)
        except Exception as error:  # files of others may hold anything
            is_ours = isinstance(error, ClbenchError)
            line = str(error) if is_ours else f"cannot be read: {explain(error)}"
            if line in told:
                outcome.unchecked.append(f"see {told[line]}")
            elif line not in outcome.wrong:
                outcome.wrong.append(line)
        told |= {line: name for line in outcome.wrong if line not in told}
        yield name, outcome


def missing(path: Path) -> str:
    """Return the message on a file without which there is no submission."""
    return f"{path} is missing. Restore it."


@dataclass(frozen=True)
class Submission:
    """A submission's folder, and where the data, model and corpus of its run are on this machine.

    `model` and `corpus` are needed for those that its suite names by a folder or file.
    """

    folder: Path
    data: Path | None = None
    model: str | None = None
    corpus: str | None = None

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest; a RunFolderError if there is none."""
        return read_manifest(self.folder)

    @cached_property
    def store(self) -> Store:
        """The run in the folder."""
        return Store(self.folder)

    @cached_property
    def suite(self) -> dict[str, Any]:
        """The content of ``suite.json``; a RunFolderError if it is not that of a suite."""
        path = self.store.suite_path
        if not path.exists():
            raise RunFolderError(missing(path))
        if not (suite := self.store.read_suite()):
            raise RunFolderError(f"{path} is damaged, or not the suite of a run. Restore it.")
        return suite

    @cached_property
    def cells(self) -> list[CellResult]:
        """The cells; a RunFolderError if one is broken."""
        archive = self.folder / ARCHIVE
        if not archive.exists() and not self.store.cells.is_dir():
            raise RunFolderError(missing(archive))
        content = self.store.read()
        if content.broken:
            raise RunFolderError(content.broken[0].line("Restore it, or run its cell again."))
        if not content.cells:
            raise RunFolderError(f"{archive} has no cells. Restore it.")
        return content.cells

    @cached_property
    def file(self) -> SuiteFile:
        """The suite as a suite file, with the model and corpus of this machine.

        Raises a RunFolderError if ``suite.json`` does not describe one.
        """
        suite = self.suite
        protocol = dict(suite.get("protocol", {}))
        if self.model is not None:
            protocol |= {"model": self.model, "revision": None}
        if self.corpus is not None:
            protocol["corpus"] = self.corpus
        try:
            return SuiteFile.model_validate(
                {
                    **{name: suite[name] for name in ("name", "methods", "seeds", "scenario")},
                    "references": suite.get("references", True),
                    "question": suite.get("questions", [{}])[-1],
                    "protocol": protocol,
                    "task": suite.get("task", {}),
                }
            )
        except (ValueError, KeyError, AttributeError) as error:
            first = error.errors()[0]["loc"] if hasattr(error, "errors") else [error.args[0]]
            raise RunFolderError(
                f"{self.store.suite_path}: {'.'.join(map(str, first))} is missing or not valid. "
                "Restore it."
            ) from error

    @property
    def base(self) -> Path:
        """The folder that relative paths in the suite are read from.

        That of the packaged suite of this name if it has all tasks of this one, else `data`.
        """
        path = packaged_files("scenarios").get(self.suite.get("name", ""))
        if path and self.suite.get("task", {}).keys() <= read_suite(path).file.task.keys():
            return path.parent
        return self.data or self.folder

    @property
    def has_code(self) -> bool:
        """Whether it brings code of its own: plug-in files, or classes of other packages."""
        named = [str(table.get("method", "")) for table in self.suite.get("baseline", {}).values()]
        return bool(self.suite.get("plugins")) or any(":" in name for name in named)
