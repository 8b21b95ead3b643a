"""The task ``20newsgroups``: posts to newsgroups, as scikit-learn reads them."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clbench.core.errors import DataError
from clbench.core.files import read_file
from clbench.tasks.task import Rows, Task, TaskSource
from clbench.tasks.template import Template

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
