"""Saved splits, which reproduce a division of one task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from clbench.core.errors import DataError, ShiftError, describe_errors
from clbench.core.files import read_file, write_atomically
from clbench.tasks.task import IntArray, Rows, Task

SPLITS = ("train", "validation", "tuning")
REMEDY = "Name a file scenarios/*.split.json of a run, or leave `split` out to divide anew."


@dataclass(frozen=True)
class SplitPart:
    """One part of a divided task.

    The part ``short`` becomes the task ``glue/sst2[short]``. Rows are given by their positions in
    the task's source (`Rows.index`), ascending.
    """

    name: str
    train: tuple[int, ...]
    validation: tuple[int, ...]
    tuning: tuple[int, ...] = ()


@dataclass(frozen=True)
class Split:
    """A fitted division of one task.

    Attributes
    ----------
    kind
        Name of the shift.
    task
        Name of the divided task.
    fitted
        The shift's settings and what it fitted on the training rows (threshold, centroids).
    parts
        In training order.
    digests
        `Rows.digest` of the divided rows, by split.
    numbers
        Numbers that the shift reports.
    """

    kind: str
    task: str
    fitted: Mapping[str, Any]
    parts: tuple[SplitPart, ...]
    digests: Mapping[str, str]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    schema_version: Literal[1] = 1

    @classmethod
    def of(
        cls,
        kind: str,
        task: Task,
        names: Sequence[str],
        part_of: Mapping[str, IntArray],
        fitted: Mapping[str, Any],
        numbers: Mapping[str, Any],
    ) -> Split:
        """Return the split of `task` into parts called `names`, in training order.

        `part_of` holds, for each split of the task, the number of each row's part, shape (n,).
        """
        splits = row_splits(task)
        parts = []
        for number, name in enumerate(names):
            rows = {
                key: tuple(splits[key].index[part == number].tolist())
                for key, part in part_of.items()
            }
            parts.append(SplitPart(name, **rows))
        digests = {key: splits[key].digest for key in part_of}
        return cls(kind, task.name, fitted, tuple(parts), digests, numbers)

    def apply(self, task: Task, where: str = "the saved split") -> tuple[Task, ...]:
        """Return the parts of `task`, which share its head; messages start with `where`.

        Raises
        ------
        ShiftError
            If the task or its rows differ from those of the split.
        """
        if task.name != self.task:
            raise ShiftError(
                f"{where} divides task {self.task!r}, not {task.name!r}. "
                "Name that task, or leave `split` out to divide this one anew."
            )
        splits = row_splits(task)
        for key in SPLITS:
            if (splits[key].digest if key in splits else None) != self.digests.get(key):
                raise ShiftError(
                    f"{where} was made from other {key} rows of {task.name!r} (other data, "
                    "--limit or data_seed). Use the same rows, or leave `split` out to divide "
                    "these anew."
                )
        position = {
            key: {source: i for i, source in enumerate(rows.index.tolist())}
            for key, rows in splits.items()
        }
        tasks = []
        for part in self.parts:
            parts: dict[str, Any] = {
                key: rows.take([position[key][source] for source in getattr(part, key)])
                for key, rows in splits.items()
            }
            source = {**task.source, "part": part.name, "shift": self.kind}
            tasks.append(replace(task, name=f"{task.name}[{part.name}]", source=source, **parts))
        return tuple(tasks)

    def save(self, path: Path) -> None:
        """Write the split atomically."""
        write_atomically(path, json.dumps(asdict(self), allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Split:
        """Read a saved split.

        Raises
        ------
        DataError
            If the file is missing or is not a split.
        """
        try:
            return TypeAdapter(cls).validate_json(read_file(path))
        except OSError as error:
            raise DataError(f"split {path} cannot be read: {error.strerror}. {REMEDY}") from error
        except ValidationError as error:
            raise DataError(
                f"split {path} is damaged, or not a split of this version of clbench "
                f"({describe_errors(error)[0][:200]}). {REMEDY}"
            ) from error


def row_splits(task: Task) -> dict[str, Rows]:
    """Return the rows of each split of `task` by name; a missing tuning split is left out."""
    splits = {key: getattr(task, key) for key in SPLITS}
    return {key: rows for key, rows in splits.items() if rows is not None}
