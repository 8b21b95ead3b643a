"""Tasks on the Hugging Face hub, or in a local copy of the hub's repository; 20 Newsgroups."""

import hashlib
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from clbench.core.errors import DataError, join_names, named
from clbench.core.files import digest, read_file
from clbench.tasks.hub import HubDataset, copy_of
from clbench.tasks.spec import SPLITS, HubTaskSpec, label_name
from clbench.tasks.tables import Table, TableTask, check_columns
from clbench.tasks.task import Task, TaskSource


@dataclass(frozen=True)
class HubTask(TableTask):
    """The loader of a table with a key `hub`, `spec`.

    The settings of a `packaged` table, one that comes with clbench, are not part of the identity.
    """

    spec: HubTaskSpec
    packaged: bool = False

    @property
    def classes(self) -> int:
        """The number of classes, 1 for regression; 0 if only the rows tell."""
        return 1 if self.spec.regression else self.spec.classes or len(self.spec.labels or ())

    @property
    def _dataset(self) -> HubDataset:
        spec, splits = self.spec, tuple(map(self.spec.split, SPLITS))
        own = () if spec.folder is None else (spec.folder,)
        # Texts to write have the same columns in every configuration.
        folders = own if spec.target else (*own, "data")
        where = f"task {self.name!r}"
        return HubDataset(where, spec.hub, spec.config, spec.revision, splits, spec.field, folders)

    def __call__(self, source: TaskSource) -> Task:
        """Return the task from the copy in the data folder, or else from the hub."""
        spec, task = self.spec, super().__call__(source)
        if spec.classes not in (None, len(task.labels)):
            raise DataError(
                f"task {self.name!r}: it has {len(task.labels)} classes, not {spec.classes}. Use "
                f"a complete copy of {spec.hub}."
            )
        return task

    def tables(self, source: TaskSource, *more: str) -> dict[str, Table]:
        """Return the tables of both splits."""
        dataset, origin = self._dataset.load(source.data)
        return {
            split: self._table(dataset, origin, self.spec.split(split), *more) for split in SPLITS
        }

    def _table(self, dataset: Any, origin: str, split: str, *more: str) -> Table:
        spec, where = self.spec, f"task {self.name!r}, split {split!r} of {origin}"
        if split not in dataset:
            raise DataError(
                f"{where}: there is no such split, only {join_names(dataset)}. Name them in the "
                "key `splits`."
            )
        table = dataset[split]
        columns = list(dict.fromkeys([*spec.columns, *more]))
        check_columns(columns, table.column_names, where)
        cells = {name: list(table[name]) for name in columns}
        names: list[str] | None = getattr(table.features[spec.label], "names", None)
        every_name = [*filter(None, map(label_name, names or ()))]
        decoded = {*more, *([spec.label] if spec.labels or spec.without else [])}
        for column in decoded:
            if classes := getattr(table.features[column], "names", None):
                codes = cells[column]
                cells[column] = [None if c in (None, -1) else classes[c] for c in codes]
        if names and spec.label in decoded:
            names = [name for name in every_name if name not in (spec.without or ())]
            if spec.labels and sorted(names) != sorted(spec.labels):
                raise DataError(
                    f"{where}: the classes are {join_names(names)}, but `labels` are "
                    f"{join_names(spec.labels)}."
                )
        return Table(where, spec, cells, spec.labels or names, every_name=every_name)

    def check_without(self, tables: Collection[Table]) -> None:
        """Raise a DataError for an unknown class; copies of packaged tasks may lack one."""
        if not self.packaged:
            super().check_without(tables)

    def origin(self, source: TaskSource) -> dict[str, Any]:
        """Return digests of the copy's files, or the name and revision on the hub."""
        spec, origin = self.spec, {}
        if files := self._dataset.files(source.data):
            digests = {path.name: digest(path) for paths in files.values() for path in paths}
            origin = {"dataset": "mirror", "config": spec.config, "files": digests}
        else:
            origin = {"dataset": spec.hub, "config": spec.config, "revision": spec.revision}
        if self.packaged:
            return origin
        lists = {"rows", "classes", "description", "licence"}
        return {**origin, "columns": spec.identity(exclude=lists)}


FOLDERS = {"train": "20news-bydate-train", "validation": "20news-bydate-test"}
ARCHIVE = "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610"
"""SHA-256 of the archive 20news-bydate.tar.gz that scikit-learn downloads and checks."""
NEWSGROUPS = HubTaskSpec(
    hub="20newsgroups",
    text="text",
    skip_blank=True,
    prompt="{text}\nNewsgroup:",
    classes=20,
    rows=[11314, 7532],
    licence="not stated; for research",
    description="newsgroups of posts (Lang 1995), through scikit-learn",
)


@dataclass(frozen=True)
class Newsgroups(TableTask):
    """The loader of the task: topics of posts, by date, without headers, footers and quotes.

    Posts that are then empty are left out. ``DIR/20newsgroups`` under ``--data`` may hold the two
    folders of the unpacked archive; otherwise scikit-learn downloads it.
    """

    name: str = "20newsgroups"
    spec: HubTaskSpec = NEWSGROUPS
    classes: int = 20

    def tables(self, source: TaskSource, *more: str) -> dict[str, Table]:
        """Return the posts of both splits; raise a DataError if they cannot be read."""
        posts = {split: self._read(source, split) for split in FOLDERS}
        names = posts["train"].target_names
        if posts["validation"].target_names != names:
            raise DataError(f"task {self.name!r}: the folders {FOLDERS} hold other groups.")
        return {
            split: Table(
                f"task {self.name!r}, {split}",
                self.spec,
                {"text": some.data, "label": some.target.tolist()},
                names,
            )
            for split, some in posts.items()
        }

    def origin(self, source: TaskSource) -> dict[str, Any]:
        """Return a digest of the posts in the data folder, or that of the archive."""
        root = copy_of(source.data, self.name)
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

        root = copy_of(source.data, self.name)
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
                f"task {self.name!r}: {error}. Check the network, or give {named('data', 'DIR')} "
                "with the folders of the unpacked archive as "
                f"DIR/{self.name}/{FOLDERS[split]}."
            ) from error
        for strip in (
            news.strip_newsgroup_header,
            news.strip_newsgroup_footer,
            news.strip_newsgroup_quoting,
        ):
            posts.data = [strip(text) for text in posts.data]
        return posts
