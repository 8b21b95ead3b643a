"""Read what the board shows: submissions and kept runs, with their grades and all cells."""

import json
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from clbench.board.manifest import (
    GRADES,
    MANIFEST,
    UNVERIFIED,
    Manifest,
    read_manifest,
    read_verified,
    without_paths,
)
from clbench.core.errors import ClbenchError, RunFolderError
from clbench.core.files import digest
from clbench.core.options import checks_arguments
from clbench.report.runs import run_labels
from clbench.results.archive import ARCHIVE
from clbench.results.cell import CellResult, summarizer
from clbench.results.resume import scenario_sections
from clbench.results.score_tables import rows_frame, score_rows
from clbench.results.store import Store
from clbench.suite.schema import Question

MARKERS = (MANIFEST, "suite.json", "scores.csv", ARCHIVE, "cells")
"""Names of which an entry's folder has at least one."""
PLACES = ("results/reference", "results/community")
"""Where a clone of clbench keeps runs and submissions."""
FIELDS = ("submission", "suite", "grade", "registered", "control", "trials", "fingerprint")
"""Fields of `load` besides those of ``scores.csv``."""


@dataclass(frozen=True)
class Entry:
    """A submission or kept run: its folder and what is in it, the cells summarized.

    `conditions` are what methods must share to be compared, such as rows, model and protocol, by
    their digest; `condition` has that of each cell, by its key.
    """

    name: str
    path: Path
    cells: tuple[CellResult, ...]
    suite: Mapping[str, Any]
    question: Question
    manifest: Manifest | None
    verified: Mapping[str, Any]
    conditions: Mapping[str, Mapping[str, Any]]
    condition: Mapping[str, str]

    @property
    def grade(self) -> str:
        """The grade of ``verified.json``, or `UNVERIFIED`."""
        grade = self.verified.get("grade")
        return grade if grade in GRADES else UNVERIFIED

    @property
    def description(self) -> str:
        """What its ``suite.json`` says of the suite; empty if it says nothing."""
        return str(self.suite.get("description", ""))

    @property
    def is_result(self) -> bool:
        """Whether its scores are results: not those of trials or of a smoke run."""
        is_trial = self.suite.get("protocol", {}).get("score_on") == "tuning"
        return not is_trial and not any(cell.is_smoke for cell in self.cells)

    def command(self) -> str:
        """Return one command that runs all of it again, joined from the commands of the run.

        Paths that lead out of the working folder keep their last part.
        """
        suite, own = self.suite, {cell.baseline for cell in self.cells}
        commands = [words for words in suite.get("commands", []) if words[:1] == ["clbench"]]
        words = [*commands[-1]] if commands else ["clbench", "run", suite["name"]]
        for option, names in (
            ("--scenarios", [table.get("name", "") for table in suite.get("scenario", [])]),
            ("--methods", [name for name in suite.get("methods", []) if name in own]),
            ("--seeds", map(str, suite.get("seeds", []))),
        ):
            values = [[b for a, b in pairwise(each) if a == option] for each in commands]
            if commands and not any(values):  # those of the suite
                continue
            texts = dict.fromkeys(n for some in values for text in some for n in text.split(","))
            if not all(values) or not commands:
                stems = {Path(text).stem for text in texts}
                texts |= dict.fromkeys(name for name in names if name not in stems)
            while option in words[:-1]:
                del words[(at := words.index(option)) : at + 2]
            words += [option, ",".join(texts)]
        return shlex.join(without_paths(words))


def read_entries(folders: Iterable[str | Path]) -> tuple[list[Entry], list[str]]:
    """Return the entries among folders or directly in them, and a line on each bad one.

    A line tells what is left out: an entry, or some of its cells. Raises a RunFolderError with the
    first line if no entry can be read.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        inner = [folder] if _is_marked(folder) else _entries_in(folder) or [folder]
        found |= {path.resolve(): path for path in inner if path.resolve() not in found}
    entries, problems, stores = [], list[str](), [*map(Store, found.values())]
    for store, name in zip(stores, run_labels(stores) if stores else [], strict=True):
        try:
            entries.append(_read(store, name, problems))
        except (ClbenchError, OSError) as error:
            problems.append(f"{name} is left out: {error}")
    if not entries:
        raise RunFolderError(problems[0] if problems else "There are no folders. Name one or more.")
    return entries, problems


def _entries_in(folder: Path) -> list[Path]:
    """Return the folders of submissions and runs directly in a folder; none if there is none.

    Hidden ones are left out: a submission that a killed process did not finish is one.
    """
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    shown = (path for path in inner if path.is_dir() and not path.name.startswith("."))
    return list(filter(_is_marked, shown))


def _is_marked(folder: Path) -> bool:
    return any((folder / name).exists() for name in MARKERS)


def _read(store: Store, name: str, problems: list[str]) -> Entry:
    """Return an entry, and add lines on its broken and missing cells to `problems`."""
    if store.out.is_dir() and not _is_marked(store.out):
        raise RunFolderError(f"{store.out} holds no submission and no run. Give another folder.")
    store.require()
    manifest = read_manifest(store.out) if (store.out / MANIFEST).exists() else None
    suite, verified = store.read_suite(), read_verified(store.out)
    if not suite.get("name"):
        raise RunFolderError(f"{store.suite_path} is missing or cannot be read. Restore it.")
    conditions: dict[str, Mapping[str, Any]] = {}
    condition: dict[str, str] = {}
    summarize = summarizer()

    def record(cell: CellResult) -> CellResult:
        shared = {key: cell.recipe.get(key) for key in scenario_sections(cell.recipe)}
        key = digest(json.dumps([cell.scenario, cell.model, shared], sort_keys=True))
        condition[cell.key], conditions[key] = key, shared
        return summarize(cell)

    run = store.read(transform=record)
    lines = run.broken_lines(())
    if not any(cell.is_scored for cell in run.cells):
        problem = f"{store.out} has no finished cell. Finish the run, or leave it out."
        raise RunFolderError(" ".join([problem, *lines[:1]]))
    problems += [f"{name}: {line}" for line in lines]
    question = store.questions()[-1]
    parts = (suite, question, manifest, verified, conditions, condition)
    return Entry(name, store.out, tuple(run.cells), *parts)


@checks_arguments
def load(folders: str | Path | Sequence[str | Path] | None = None) -> pd.DataFrame:
    """Return all cells of submissions, a row each, with a warning for each bad submission.

    Parameters
    ----------
    folders
        Submissions or runs, or folders that contain some; by default those that a clone of clbench
        holds, from its root.

    Returns
    -------
    pandas.DataFrame
        ``submission``, ``suite`` and ``grade``; the ``registered`` method behind each baseline;
        whether it is a ``control``; the ``trials`` of the search for its settings; the
        ``fingerprint`` of the cell; and the fields of ``scores.csv``. Scores are fractions.

    Raises
    ------
    RunFolderError
        If no submission can be read.
    """
    if folders is None:
        folders = [place for place in PLACES if _entries_in(Path(place))]
        if not folders:
            raise RunFolderError(f"There is no run in {' or '.join(PLACES)} here. Give folders.")
    entries, problems = read_entries([folders] if isinstance(folders, str | Path) else folders)
    for line in problems:
        warnings.warn(line, stacklevel=2)
    return cells_frame(entries)


def cells_frame(entries: Iterable[Entry]) -> pd.DataFrame:
    """Return the frame of `load`."""
    rows = []
    for each in entries:
        cells = [cell for cell in each.cells if cell.reference_of is None]
        for cell, row in zip(cells, score_rows(each.cells, each.question.reference), strict=True):
            trials = cell.search.get("trials", 0)
            values = (each.name, each.suite["name"], each.grade, cell.method, cell.control, trials)
            rows.append(dict(zip(FIELDS, (*values, cell.fingerprint), strict=True)) | row)
    return rows_frame(rows, FIELDS)
