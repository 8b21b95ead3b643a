"""The nine tasks of GLUE (Wang et al. 2019), from the hub or from a mirror of it on disk."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from clbench.errors import DataError
from clbench.tasks.registry import TaskSource
from clbench.tasks.task import Rows, Task

if TYPE_CHECKING:
    from datasets import Dataset

HUB_NAME = "nyu-mll/glue"
HUB_REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
"""Commit of the hub repository that all results refer to."""


@dataclass(frozen=True)
class GlueTask:
    """One task of GLUE, as a loader.

    Attributes
    ----------
    config
        Name of the hub repository's configuration.
    texts
        The text columns.
    labels
        Names of classes 0, 1, …, in the hub's order; none for regression.
    metrics
        The first is the one that p_o and p_s hold: accuracy, as in Kenneweg et al. 2022;
        the others are those of the GLUE benchmark (Wang et al. 2019, table 1).
    validation
        The split that is reported.
    description
        One line for lists.
    """

    config: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    description: str
    validation: str = "validation"

    def __call__(self, source: TaskSource) -> Task:
        """Load the task.

        Raises
        ------
        DataError
            If the hub cannot be reached, or the mirror lacks the task or is broken.
        """
        name = f"glue/{self.config}"
        splits = _load(self, source.data)
        for split in ("train", self.validation):
            if split not in splits:
                raise DataError(
                    f"task {name!r}: {_place(source.data)} has no split {split!r} of it, "
                    f"only {', '.join(splits) or 'none'}."
                )
        train, validation = splits["train"], splits[self.validation]
        return Task(
            name,
            self.labels,
            self.metrics,
            self._rows(train, "train", source.data),
            self._rows(validation, self.validation, source.data),
            head=name,
            source=self.identity(source),
        )

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Digests of the mirror's files, or the hub's name and revision."""
        if source.data is None:
            return {"dataset": HUB_NAME, "config": self.config, "revision": HUB_REVISION}
        digests = {
            path.name: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
            for path in _mirror_files(self, source.data)
        }
        return {"dataset": "mirror", "config": self.config, "files": digests}

    def _rows(self, dataset: Dataset, split: str, data: Path | None) -> Rows:
        where = f"task 'glue/{self.config}', split {split!r} of {_place(data)}"
        for column in (*self.texts, "label"):
            if column not in dataset.column_names:
                raise DataError(
                    f"{where}: there is no column {column!r}, only "
                    f"{', '.join(dataset.column_names)}. This is not the hub's layout."
                )
        if not len(dataset):
            raise DataError(f"{where}: there are no rows.")
        names = getattr(dataset.features["label"], "names", None)
        if names is not None and tuple(names) != self.labels:
            raise DataError(
                f"{where}: the classes are {', '.join(names)} instead of {', '.join(self.labels)}."
            )
        values = [np.nan if value is None else value for value in dataset["label"]]
        try:
            labels = np.asarray(values, dtype=np.float64)
        except ValueError as fault:
            raise DataError(f"{where}: the labels are not numbers, as the hub's are.") from fault
        unlabelled = ~(labels >= 0)  # also true of NaN
        if unlabelled.any():
            raise DataError(
                f"{where}: {int(unlabelled.sum())} of {len(labels)} rows have no label "
                "(-1 or empty), as in the hub's test splits. Only labelled rows can be used."
            )
        columns = [list(dataset[column]) for column in self.texts]
        return Rows.of(
            columns[0],
            columns[1] if len(columns) == 2 else None,
            labels,
            regression=not self.labels,
        )


_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES = ("sentence1", "sentence2")

LOADERS = SimpleNamespace(
    cola=GlueTask(
        "cola",
        ("sentence",),
        ("unacceptable", "acceptable"),
        ("accuracy", "matthews"),
        "is the sentence grammatical",
    ),
    sst2=GlueTask(
        "sst2",
        ("sentence",),
        ("negative", "positive"),
        ("accuracy",),
        "sentiment of film reviews",
    ),
    mrpc=GlueTask(
        "mrpc",
        _SENTENCES,
        ("not_equivalent", "equivalent"),
        ("accuracy", "f1"),
        "do two sentences of news say the same",
    ),
    qqp=GlueTask(
        "qqp",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        ("accuracy", "f1"),
        "do two questions ask the same",
    ),
    stsb=GlueTask(
        "stsb",
        _SENTENCES,
        (),
        ("pearson", "spearman"),
        "how similar are two sentences, 0 to 5 (regression)",
    ),
    mnli=GlueTask(
        "mnli",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        "does the premise entail the hypothesis (reported on the matched split)",
        validation="validation_matched",
    ),
    qnli=GlueTask(
        "qnli",
        ("question", "sentence"),
        _ENTAILMENT,
        ("accuracy",),
        "does the sentence answer the question",
    ),
    rte=GlueTask(
        "rte",
        _SENTENCES,
        _ENTAILMENT,
        ("accuracy",),
        "does the first sentence entail the second",
    ),
    wnli=GlueTask(
        "wnli",
        _SENTENCES,
        ("not_entailment", "entailment"),
        ("accuracy",),
        "does the pronoun mean that noun",
    ),
)
"""The loaders by configuration."""


def _place(data: Path | None) -> str:
    return f"the hub's {HUB_NAME}" if data is None else str(data / "glue")


def _mirror_files(task: GlueTask, data: Path) -> list[Path]:
    """The files of the task's two splits in the mirror, checked to be there and whole."""
    remedy = f"--data must name a folder whose `glue` has the layout of {HUB_NAME}"
    if not data.is_dir():
        raise DataError(f"data folder {data}: there is no such folder; {remedy}.")
    if not (data / "glue").is_dir():
        inside = " It is itself such a mirror: give its parent." if data.name == "glue" else ""
        raise DataError(f"data folder {data} has no folder `glue`; {remedy}.{inside}")
    folder = data / "glue" / task.config
    if not folder.is_dir():
        have = sorted(path.name for path in folder.parent.iterdir() if path.is_dir())
        raise DataError(
            f"data folder {data}: the mirror in `glue` lacks the task {task.config!r} "
            f"(it has {', '.join(have) or 'none'}). Copy the folder `{task.config}` of "
            f"{HUB_NAME} there, or leave this task out."
        )
    found: list[Path] = []
    for split in ("train", task.validation):
        files = sorted(folder.glob(f"{split}-*.parquet"))
        if not files:
            raise DataError(
                f"data folder {data}: {folder} has no file {split}-*.parquet; {remedy}."
            )
        found += files
    for path in found:
        try:
            _check_parquet(path)
        except OSError as fault:
            raise DataError(f"{path} cannot be read: {fault.strerror}.") from fault
    return found


def _check_parquet(path: Path) -> None:
    """Refuse what was cut off or never fetched, before the reader's obscure words do."""
    with path.open("rb") as file:
        head = file.read(64)
        file.seek(max(0, path.stat().st_size - 4))
        tail = file.read(4)
    if head.startswith(b"version https://git-lfs"):
        raise DataError(f"{path} is a pointer of Git LFS, not the data. Run `git lfs pull`.")
    if not head.startswith(b"PAR1") or tail != b"PAR1":
        raise DataError(f"{path} is empty or cut off: no whole Parquet file. Copy it again.")


def _load(task: GlueTask, data: Path | None) -> Any:
    """The one call of `datasets`, its many ways of failing made into one."""
    import datasets

    place, options = HUB_NAME, dict[str, Any](name=task.config, revision=HUB_REVISION)
    if data is not None:
        _mirror_files(task, data)
        place = str(data.resolve() / "glue")
        # Only the files that are needed, without asking the repository's card which there
        # should be: a mirror may hold some of the tasks and some of the rows.
        files = {split: f"{task.config}/{split}-*.parquet" for split in ("train", task.validation)}
        options = {"data_files": files, "verification_mode": "no_checks"}
    try:
        with _quiet(datasets):
            return datasets.load_dataset(place, **options)
    # The library and what it calls raise errors of a dozen unrelated families here.
    except Exception as fault:
        reason = f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:300]
        if data is None:
            raise DataError(
                f"task 'glue/{task.config}': {HUB_NAME} cannot be had from the hub ({reason}). "
                "Check the network, or give a mirror on disk with --data DIR, where "
                "DIR/glue has the layout of the hub repository."
            ) from fault
        raise DataError(
            f"task 'glue/{task.config}': {data / 'glue'} cannot be read ({reason}). "
            f"Its files must be those of {HUB_NAME}; copy them again."
        ) from fault


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """No progress bars of `datasets` inside, which would cut through the run's own.

    No warnings of the hub's client about its retries either: what comes of them is said.
    """
    shown = datasets.is_progress_bar_enabled()
    client = logging.getLogger("huggingface_hub")
    level = client.level
    datasets.disable_progress_bars()
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)
        if shown:
            datasets.enable_progress_bars()
