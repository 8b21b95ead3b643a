"""A search's folder: `search.json`, a file a trial under `trials/`, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clbench.errors import DataError, RunFolderError
from clbench.messages import describe_missing
from clbench.results.cell import plain
from clbench.results.conflicts import first_difference
from clbench.results.output_folder import locked, write_text
from clbench.search.baseline import FoundOn
from clbench.search.record import SCHEMA_VERSION, TrialRecord
from clbench.settings import describe_fault

FORMAT = "clbench-search"


class SearchFolder:
    """The folder of one search.

    Parameters
    ----------
    path
        Need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.trials = self.path / "trials"
        self.file = self.path / "search.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out; nothing is written before.

        Raises
        ------
        RunFolderError
            If another process has it, or it holds something else.
        """
        self.check_place()
        with locked(self.path, begun=self.file):
            yield

    def check_place(self) -> None:
        """Check that a search may write there, without writing.

        Raises
        ------
        RunFolderError
            If it is a file, or holds something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file, not a folder. Take another --out.")
        if (self.path / "suite.json").exists():
            raise RunFolderError(f"{self.path} holds a run. Take another --out.")
        if not self.file.exists() and any(self.trials.glob("*.json")):
            raise RunFolderError(
                f"{self.trials} holds trials, but {self.file.name} is missing, which says what "
                "they are of. Put it back, or take another --out."
            )

    def settings(self) -> dict[str, Any]:
        """What the search was begun with; empty where there is none.

        Raises
        ------
        RunFolderError
            If the file is not of a search, or of a newer version.
        """
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as fault:
            raise RunFolderError(f"{self.file} cannot be read: {fault}. Move it away.") from fault
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunFolderError(f"{self.file} was not written by clbench. Take another --out.")
        if content.get("schema_version") != SCHEMA_VERSION:
            raise RunFolderError(
                f"{self.file} was written by a newer clbench. Update it, or take another --out."
            )
        search = (content.get("recipe") or {}).get("search")
        if not isinstance(search, dict) or not {"flat", "depth", "division"} <= search.keys():
            raise RunFolderError(f"{self.file} is damaged: its recipe is missing. Put it back.")
        return content

    def check(self, recipe: Mapping[str, Any]) -> None:
        """Check that a search that is there can go on with `recipe`, without writing.

        Raises
        ------
        RunFolderError
            If it has another; names what differs first. See also `check_place`.
        """
        self.check_place()
        before = self.settings()
        if before:
            difference = first_difference(before.get("recipe", {}), plain(recipe))
            if difference is not None:
                raise RunFolderError(f"{self.file} {difference}. Take another --out.")

    def begin(self, recipe: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Write the settings.

        Parameters
        ----------
        recipe
            What decides a trial's scores and which trials there are, by section.
        told
            What besides a reader wants to know.
        """
        content = {"format": FORMAT, "schema_version": SCHEMA_VERSION, **told, "recipe": recipe}
        content = plain(content)
        write_text(self.file, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def write(self, trial: TrialRecord) -> None:
        """Write a trial's file, whole or not at all."""
        write_text(self.trials / f"{trial.number:04d}.json", trial.to_json())

    def read(self) -> list[TrialRecord]:
        """All trials by their numbers.

        Raises
        ------
        DataError
            If a file holds no trial; says what is wrong with it.
        """
        found: list[TrialRecord] = []
        for path in sorted(self.trials.glob("*.json")):
            if path.name.startswith("."):
                continue
            try:
                trial = TrialRecord.model_validate_json(path.read_bytes())
            except OSError as fault:
                raise DataError(f"{path} cannot be read: {fault.strerror}.") from fault
            except ValidationError as fault:
                what = describe_fault(fault.errors()[0])[:200]
                raise DataError(
                    f"{path} is no trial: {what}. Move it away, and it is tried again."
                ) from fault
            if path.stem != f"{trial.number:04d}":
                raise DataError(f"{path} holds trial {trial.number}. Move it away.")
            if found and len(trial.rates) != len(found[0].rates):
                raise DataError(
                    f"{path} is no trial of this search: it has {len(trial.rates)} rates, others "
                    f"{len(found[0].rates)}. Move it away."
                )
            found.append(trial)
        return sorted(found, key=lambda trial: trial.number)

    def found_on(self) -> FoundOn:
        """What the search's rates are for.

        Raises
        ------
        DataError
            If there is no search in the folder.
        """
        settings = self.settings()
        if not settings:
            missing = (
                describe_missing(self.path, "folder")
                if not self.path.exists()
                else "holds no search"
            )
            raise DataError(f"{self.path}: {missing}. Give a folder that clbench search wrote.")
        space = settings["recipe"]["search"]
        return FoundOn(space["flat"], space["depth"], space["division"])
