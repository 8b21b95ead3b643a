"""Tasks on the Hugging Face hub, or in a copy of the hub's repository on disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.errors import DataError
from clbench.tasks.columns import Columns, check_columns
from clbench.tasks.metrics import check_metrics
from clbench.tasks.spec import HubTaskSpec
from clbench.tasks.task import Task

if TYPE_CHECKING:
    from clbench.tasks.registry import TaskSource

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
"""Files of a copy on disk that are read."""


@dataclass(frozen=True)
class HubTask:
    """The loader of a table with a key `hub`.

    Attributes
    ----------
    name
        Name of the task.
    spec
        The table.
    packaged
        Whether the table comes with clbench. Then its settings are no part of the identity.
    """

    name: str
    spec: HubTaskSpec
    packaged: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics; the first is the score."""
        return self.spec.scores

    @property
    def description(self) -> str:
        """One line for lists."""
        return self.spec.description

    def __call__(self, source: TaskSource) -> Task:
        """Read the rows from the copy in the data folder, or else from the hub.

        Raises
        ------
        DataError
            If the hub cannot be reached, the copy is incomplete, or the rows do not fit the
            table.
        """
        dataset, place = self._load(source.data)
        classes: list[str] = []
        rows = []
        for split in ("train", "validation"):
            name = self.spec.split(split)
            where = f"task {self.name!r}, split {name!r} of {place}"
            if name not in dataset:
                raise DataError(f"{where}: there is no such split, only {', '.join(dataset)}.")
            columns = [*self.spec.text, self.spec.label]
            check_columns(columns, dataset[name].column_names, where)
            cells = {column: list(dataset[name][column]) for column in columns}
            table = Columns(where, self.spec, cells)
            self._check_labelled(cells[self.spec.label], where)
            coded = bool(names := self._declared(dataset[name], where))
            if split == "train" and not self.spec.regression:
                classes = names or table.class_names()
            rows.append(table.rows(classes, coded=coded))
        return Task(
            self.name,
            tuple(classes),
            self.metrics,
            *rows,
            head=self.name,
            source=self.identity(source),
        )

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Return digests of the copy's files, or the name and revision on the hub."""
        check_metrics(f"[task.{self.name}] metrics", self.metrics, self.spec.regression)
        spec = self.spec
        settings = {} if self.packaged else {"columns": spec.model_dump(exclude={"description"})}
        files = self._files(source.data)
        if not files:
            hub = {"dataset": spec.hub, "config": spec.config, "revision": spec.revision}
            return {**hub, **settings}
        digests = {
            path.name: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
            for paths in files.values()
            for path in paths
        }
        return {"dataset": "mirror", "config": spec.config, "files": digests, **settings}

    def _declared(self, dataset: Any, where: str) -> list[str]:
        """Return the names of classes 0, 1, … as the dataset or else the table has them."""
        names = list(getattr(dataset.features[self.spec.label], "names", None) or [])
        if names and self.spec.labels and names != self.spec.labels:
            raise DataError(
                f"{where}: the classes are {', '.join(names)}, but `labels` are "
                f"{', '.join(self.spec.labels)}."
            )
        return [] if self.spec.regression else names or self.spec.labels or []

    def _check_labelled(self, labels: list[Any], where: str) -> None:
        missing = sum(label is None or label == -1 for label in labels)
        if missing and not self.spec.regression:
            raise DataError(
                f"{where}: {missing} of {len(labels)} rows have no label (-1 or empty), as in "
                "unlabelled test splits. Name a labelled split in `splits`."
            )

    def _folder(self, data: Path | None) -> Path | None:
        """Return the folder of the copy on disk, or None if the hub is to be asked."""
        folder = None if data is None else data / self.spec.hub.rpartition("/")[2]
        return folder if folder is not None and folder.is_dir() else None

    def _files(self, data: Path | None) -> dict[str, list[Path]]:
        """Return the files of both splits in the copy on disk; empty if there is no copy."""
        root, config = self._folder(data), self.spec.config
        if root is None:
            return {}
        if config and (root / config).is_dir():
            folders = [root / config]
        else:
            others = [] if config else sorted(path for path in root.iterdir() if path.is_dir())
            folders = list(dict.fromkeys([root, root / "data", *others]))
        files = {}
        for split in (self.spec.split("train"), self.spec.split("validation")):
            places = {
                folder: paths
                for folder in folders
                if (
                    paths := sorted(p for p in folder.glob(f"{split}[-.]*") if p.suffix in SUFFIXES)
                )
            }
            if len(places) != 1:
                inside = sorted(path.name for path in root.iterdir() if path.is_dir())
                found = "is in several folders" if places else f"has no file {split}-*.parquet"
                raise DataError(
                    f"task {self.name!r}: split {split!r} {found} of {root} (config = {config!r}; "
                    f"folders: {', '.join(inside) or 'none'}). Use the layout of {self.spec.hub}, "
                    "and set config to the folder."
                )
            (files[split],) = places.values()
        return files

    def _load(self, data: Path | None) -> tuple[Any, str]:
        """Return the splits and where they come from; every error becomes one line."""
        import datasets

        spec, root, files = self.spec, self._folder(data), self._files(data)
        folder = spec.hub.rpartition("/")[2]
        visible = datasets.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            if root is None:
                place = f"{spec.hub} on the hub"
                return datasets.load_dataset(
                    spec.hub, name=spec.config, revision=spec.revision
                ), place
            # Named files are read whatever the card of the repository says: a copy may hold
            # only some configurations and rows.
            paths = {
                split: [str(path.relative_to(root)) for path in paths]
                for split, paths in files.items()
            }
            return datasets.load_dataset(
                str(root.resolve()), data_files=paths, verification_mode="no_checks"
            ), str(root)
        # The library and what it calls raise errors of a dozen unrelated families here.
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            problem = (
                f"{spec.hub} could not be downloaded ({reason}). Check the network, or give a "
                f"copy with --data DIR, as DIR/{folder}."
                if root is None
                else f"{root} cannot be read ({reason}). Copy the files of {spec.hub} again."
            )
            raise DataError(f"task {self.name!r}: {problem}") from error
        finally:
            if visible:
                datasets.enable_progress_bars()
