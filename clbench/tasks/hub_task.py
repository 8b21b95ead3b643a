"""Tasks on the Hugging Face hub, or in a local copy of the hub's repository."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clbench.core.errors import DataError, join_names
from clbench.core.files import read_file
from clbench.tasks.columns import Columns, check_columns
from clbench.tasks.metrics import check_metrics
from clbench.tasks.spec import SPLITS, HubTaskSpec
from clbench.tasks.task import Rows, Task, TaskSource
from clbench.tasks.template import Template

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
"""Suffixes of the files to read from a local copy."""


@dataclass(frozen=True)
class HubTask:
    """The loader of a table with a key `hub`, `spec`.

    The settings of a `packaged` table, one that comes with clbench, are not part of the identity.
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

    @property
    def classes(self) -> int:
        """The number of classes, 1 for regression; 0 if only the rows tell."""
        return 1 if self.spec.regression else self.spec.classes or len(self.spec.labels or ())

    def template(self) -> Template:
        """Return the template of prompts and answers, as far as it is known without rows."""
        return self.spec.template(self.spec.labels or [])

    @property
    def rows(self) -> list[int] | None:
        """Training and validation rows of the whole dataset."""
        return self.spec.rows

    @property
    def licence(self) -> str:
        """The licence of the dataset."""
        return self.spec.licence

    def __call__(self, source: TaskSource) -> Task:
        """Return the task from the copy in the data folder, or else from the hub."""
        spec, (dataset, origin) = self.spec, self._load(source.data)
        classes: list[str] = []
        rows = []
        blank: dict[str, int] = {}
        for split in map(spec.split, SPLITS):
            table, names = self._table(dataset, origin, split)
            where = table.where
            blank[split] = table.blank
            labels = [table.cells[spec.label][row] for row in table.positions]
            missing = sum(label is None or label == -1 for label in labels)
            if missing and spec.has_classes:
                raise DataError(
                    f"{where}: column {spec.label!r} is -1 or empty in {missing} of {len(labels)} "
                    "rows, as in unlabelled test splits. Name a labelled split in `splits`."
                )
            if not classes and spec.has_classes:
                classes = names or table.class_names()
            if spec.classes not in (None, len(classes)):
                raise DataError(
                    f"{where}: it has {len(classes)} classes, not {spec.classes}. Use a complete "
                    f"copy of {spec.hub}."
                )
            rows.append(table.rows(classes, coded=bool(names)))
        return Task(
            self.name,
            tuple(classes),
            self.metrics,
            train=rows[0],
            validation=rows[1],
            head=self.name,
            source={**self.identity(source), **({"blank": blank} if spec.skip_blank else {})},
            template=spec.template(classes, f"task {self.name!r}: "),
        )

    def column(self, source: TaskSource, name: str) -> dict[str, dict[int, str]]:
        """Return the cells of a column by split and `Rows.index`."""
        dataset, origin = self._load(source.data)
        return {
            split: self._table(dataset, origin, self.spec.split(split), name)[0].by_row(name)
            for split in SPLITS
        }

    def _table(
        self, dataset: Any, origin: str, split: str, *more: str
    ) -> tuple[Columns, list[str] | None]:
        """Return the columns of the task, and `more`, and the names of its classes if known."""
        spec, where = self.spec, f"task {self.name!r}, split {split!r} of {origin}"
        if split not in dataset:
            raise DataError(
                f"{where}: there is no such split, only {join_names(dataset)}. Name them in the "
                "key `splits`."
            )
        table = dataset[split]
        columns = dict.fromkeys([*spec.columns, *more])
        check_columns(list(columns), table.column_names, where)
        cells = {name: list(table[name]) for name in columns}
        names: list[str] | None = getattr(table.features[spec.label], "names", None)
        decoded = {*more, *([spec.label] if spec.labels or spec.without else [])}
        for column in decoded:
            if classes := getattr(table.features[column], "names", None):
                codes = cells[column]
                cells[column] = [None if c in (None, -1) else classes[c] for c in codes]
        if names and spec.label in decoded:
            names = self._kept(names, where)
        return Columns(where, spec, cells), spec.labels or names

    def _kept(self, names: list[str], where: str) -> list[str]:
        """Return the names of the dataset's classes that are not left out."""
        spec = self.spec
        kept = [name for name in names if name not in (spec.without or ())]
        if spec.labels and sorted(kept) != sorted(spec.labels):
            raise DataError(
                f"{where}: the classes are {join_names(kept)}, but `labels` are "
                f"{join_names(spec.labels)}."
            )
        return kept

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Return digests of the copy's files, or the name and revision on the hub."""
        spec, where = self.spec, f"[task.{self.name}] metrics"
        check_metrics(where, self.metrics, spec.regression, free_text=bool(spec.target))
        identity: dict[str, Any]
        identity = {"dataset": spec.hub, "config": spec.config, "revision": spec.revision}
        if files := self._files(source.data):
            digests = {
                path.name: hashlib.blake2b(read_file(path), digest_size=16).hexdigest()
                for paths in files.values()
                for path in paths
            }
            identity = {"dataset": "mirror", "config": spec.config, "files": digests}
        if not self.packaged:
            lists = {"rows", "classes", "description", "licence"}
            identity["columns"] = spec.identity(exclude=lists)
        return identity

    def _folder(self, data: Path | None) -> Path | None:
        """Return the folder of the local copy, or None if there is none."""
        folder = None if data is None else data / self.spec.hub.rpartition("/")[2]
        return folder if folder is not None and folder.is_dir() else None

    def _files(self, data: Path | None) -> dict[str, list[Path]]:
        """Return the files of both splits in the local copy; empty if there is none."""
        root, config = self._folder(data), self.spec.config
        if root is None:
            return {}
        folder, files = root, {}
        if config:
            only = [path for path in root.iterdir() if path.is_dir()]
            places = [root / config, root / "data", *(only if len(only) == 1 else ())]
            if self.spec.target:  # another configuration would have the same columns
                places = places[:1]
            folder = next((place for place in places if place.is_dir()), root)
        for split in map(self.spec.split, SPLITS):
            pattern = f"{'' if config else '**/'}{split}[-.]*"
            files[split] = sorted(p for p in folder.glob(pattern) if p.suffix in SUFFIXES)
            if len({path.parent for path in files[split]}) != 1:
                problem = "is in several folders" if files[split] else "has no files"
                inside = sorted(path.name for path in root.iterdir() if path.is_dir())
                present = sorted(path.name for path in folder.iterdir() if path.is_file())
                raise DataError(
                    f"task {self.name!r}: split {split!r} {problem} in {folder} (files: "
                    f"{join_names(present)}; config = {config!r}; folders in {root}: "
                    f"{join_names(inside)}). Use the layout of {self.spec.hub}, with "
                    f"files {split}-*.parquet, or set `splits` to the names of its splits or "
                    "`config` to one of its folders."
                )
        return files

    def _load(self, data: Path | None) -> tuple[Any, str]:
        """Return the dataset and its origin for messages; raise a DataError on any failure."""
        import datasets

        spec, root, files = self.spec, self._folder(data), self._files(data)
        folder = spec.hub.rpartition("/")[2]
        visible = datasets.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            if root is None:
                origin = f"{spec.hub} on the hub"
                return datasets.load_dataset(
                    spec.hub, name=spec.config, revision=spec.revision
                ), origin
            # Name the files instead of following the card of the repository: a copy may hold
            # only some of its configurations and rows.
            paths = {
                split: [str(path.relative_to(root)) for path in paths]
                for split, paths in files.items()
            }
            options: dict[str, Any] = {"verification_mode": "no_checks"}
            if spec.field is not None:
                json = {k: [str(root.resolve() / one) for one in some] for k, some in paths.items()}
                return datasets.load_dataset(
                    "json", data_files=json, field=spec.field, **options
                ), str(root)
            return datasets.load_dataset(str(root.resolve()), data_files=paths, **options), str(
                root
            )
        # The library and its dependencies raise a dozen unrelated types of errors here.
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


FOLDERS = {"train": "20news-bydate-train", "validation": "20news-bydate-test"}
ARCHIVE = "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610"
"""SHA-256 of the archive 20news-bydate.tar.gz that scikit-learn downloads and checks."""


@dataclass(frozen=True)
class Newsgroups:
    """The loader of the task: topics of posts, by date, without headers, footers and quotes.

    Posts that are then empty are left out. ``DIR/20newsgroups`` under ``--data`` may hold the two
    folders of the unpacked archive; otherwise scikit-learn downloads it.
    """

    name: str = "20newsgroups"
    metrics: tuple[str, ...] = ("accuracy",)
    classes: int = 20
    rows: tuple[int, int] = (11314, 7532)
    licence: str = "not stated; for research"
    description: str = "newsgroups of posts (Lang 1995), through scikit-learn"

    def __call__(self, source: TaskSource) -> Task:
        """Return the task; raise a DataError if its posts cannot be read or downloaded."""
        splits = {split: self._read(source, split) for split in FOLDERS}
        names = splits["train"].target_names
        rows, blank = {}, {}
        for split, posts in splits.items():
            if posts.target_names != names:
                raise DataError(f"task {self.name!r}: the folders {FOLDERS} hold other groups.")
            kept = [position for position, text in enumerate(posts.data) if text.strip()]
            blank[split] = len(posts.data) - len(kept)
            rows[split] = Rows.of(posts.data, None, posts.target).take(np.asarray(kept))
        return Task(
            self.name,
            tuple(names),
            self.metrics,
            rows["train"],
            rows["validation"],
            head=self.name,
            source={**self.identity(source), "blank": blank},
            template=self.template(),
        )

    def template(self) -> Template:
        """Return the template of prompts and answers."""
        return Template("{text}\nNewsgroup:")

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Return a digest of the posts in the data folder, or that of the archive."""
        root = _folder(source.data)
        if root is None:
            return {"dataset": self.name, "archive": ARCHIVE}
        hasher = hashlib.blake2b(digest_size=16)
        for folder in FOLDERS.values():
            for path in sorted((root / folder).rglob("*")):
                if path.is_file():
                    hasher.update(str(path.relative_to(root)).encode() + read_file(path))
        return {"dataset": "mirror", "files": hasher.hexdigest()}

    def _read(self, source: TaskSource, split: str) -> Any:
        from sklearn.datasets import _twenty_newsgroups as news

        remove = (
            news.strip_newsgroup_header,
            news.strip_newsgroup_footer,
            news.strip_newsgroup_quoting,
        )
        root = _folder(source.data)
        try:
            if root is None:
                subset = "test" if split == "validation" else split
                parts = ("headers", "footers", "quotes")
                with warnings.catch_warnings():  # of retries: the error below says it all
                    warnings.simplefilter("ignore")
                    return news.fetch_20newsgroups(subset=subset, remove=parts, shuffle=False)
            posts = news.load_files(root / FOLDERS[split], encoding="latin1", shuffle=False)
        except (OSError, ValueError) as error:
            raise DataError(
                f"task {self.name!r}: {error}. Check the network, or give --data DIR with the "
                f"folders of the unpacked archive as DIR/{self.name}/{FOLDERS[split]}."
            ) from error
        for strip in remove:
            posts.data = [strip(text) for text in posts.data]
        return posts


def _folder(data: Path | None) -> Path | None:
    """Return the folder of a local copy, or None if there is none."""
    folder = None if data is None else data / "20newsgroups"
    return folder if folder is not None and folder.is_dir() else None
