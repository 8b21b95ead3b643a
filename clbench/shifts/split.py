"""How a shift divided one task: kept, so that the same parts can be shown and used again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from clbench.cache import write_atomically
from clbench.errors import DataError, ShiftError
from clbench.messages import describe_errors, describe_missing
from clbench.tasks.task import IntArray, Rows, Task

SCHEMA_VERSION = 1
SPLITS = ("train", "validation", "tuning")
REMEDY = "Name a file scenarios/*.split.json of a run, or leave `split` out to divide anew."


@dataclass(frozen=True)
class SplitPart:
    """One part of a divided task.

    Attributes
    ----------
    name
        Such as ``short``; the part's task is ``glue/sst2[short]``.
    train, validation, tuning
        Its rows as positions in the task's source (`Rows.index`), ascending.
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
        The shift that made it.
    task
        Name of the divided task.
    fitted
        Its settings and the numbers fitted on the training rows (threshold, centroids).
    parts
        In training order.
    digests
        `Rows.digest` of the divided rows, by split.
    numbers
        What the shift reported when it was fitted.
    """

    kind: str
    task: str
    fitted: Mapping[str, Any]
    parts: tuple[SplitPart, ...]
    digests: Mapping[str, str]
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kind: str,
        task: Task,
        names: Sequence[str],
        assigned: Mapping[str, IntArray],
        fitted: Mapping[str, Any],
        numbers: Mapping[str, Any],
    ) -> Split:
        """A split from each row's part.

        Parameters
        ----------
        kind, task
            The shift and the task that it divided.
        names
            Names of the parts, in training order.
        assigned
            For each split of the task the number of each row's part, shape (n,).
        fitted, numbers
            As the attributes.
        """
        parts = []
        for number, name in enumerate(names):
            rows = {
                key: tuple(_rows(task, key).index[assigned[key] == number].tolist())
                for key in assigned
            }
            parts.append(SplitPart(name, **rows))
        digests = {key: _rows(task, key).digest for key in assigned}
        return cls(kind, task.name, fitted, tuple(parts), digests, numbers)

    def apply(self, task: Task, where: str = "the saved split") -> tuple[Task, ...]:
        """The parts of `task`, sharing its head.

        Parameters
        ----------
        task
            The task that the split was fitted on, with the very same rows.
        where
            The split's file, for messages.

        Raises
        ------
        ShiftError
            If the task or its rows are others than those of the split.
        """
        if task.name != self.task:
            raise ShiftError(
                f"{where} divides task {self.task!r}, not {task.name!r}. "
                "Name that task, or leave `split` out to divide this one anew."
            )
        for key in SPLITS:
            rows = getattr(task, key)
            if (rows.digest if rows is not None else None) != self.digests.get(key):
                raise ShiftError(
                    f"{where} was made of other {key} rows of {task.name!r} than those loaded "
                    "now (other data, --limit or data_seed). Use the same rows, or leave "
                    "`split` out to divide these anew."
                )
        return tuple(self._part(task, part, where) for part in self.parts)

    def _part(self, task: Task, part: SplitPart, where: str) -> Task:
        cut: dict[str, Any] = {
            key: _at(_rows(task, key), getattr(part, key), f"{where}, part {part.name!r}")
            for key in self.digests
        }
        return replace(
            task,
            name=f"{task.name}[{part.name}]",
            source={**task.source, "part": part.name, "shift": self.kind},
            **cut,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"schema_version": SCHEMA_VERSION, **json.loads(json.dumps(asdict(self)))}

    def save(self, path: Path) -> None:
        """Write the split, whole or not at all."""
        write_atomically(path, json.dumps(self.to_json(), allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Split:
        """Read a saved split.

        Raises
        ------
        DataError
            If the file is missing or is no split.
        """
        content = _content(path)
        try:
            stored = _Stored.model_validate(content)
        except ValidationError as fault:
            raise DataError(
                f"split {path} is damaged: {describe_errors(fault)[0]}. {REMEDY}"
            ) from fault
        if stored.schema_version != SCHEMA_VERSION:
            raise DataError(
                f"split {path} has schema version {stored.schema_version}, this clbench reads "
                f"{SCHEMA_VERSION}. {REMEDY}"
            )
        parts = tuple(SplitPart(**part.model_dump()) for part in stored.parts)
        return cls(stored.kind, stored.task, stored.fitted, parts, stored.digests, stored.numbers)


def _content(path: Path) -> dict[str, Any]:
    """What the file of a split holds, as far as it can be told from any other JSON file."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as fault:
        raise DataError(f"split {path}: {describe_missing(path)}. {REMEDY}") from fault
    except OSError as fault:
        raise DataError(f"split {path} cannot be read: {fault.strerror}.") from fault
    except (ValueError, RecursionError) as fault:
        raise DataError(f"split {path} is broken off or no JSON. {REMEDY}") from fault
    if not isinstance(content, dict) or "schema_version" not in content:
        beside = path.with_suffix(".split.json")
        hint = f"Do you mean {beside}?" if beside.is_file() else REMEDY
        raise DataError(f"split {path} is no split saved by clbench. {hint}")
    return content


class _StoredPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)

    name: str
    train: tuple[int, ...]
    validation: tuple[int, ...]
    tuning: tuple[int, ...] = ()


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: int
    kind: str
    task: str
    fitted: dict[str, Any]
    parts: list[_StoredPart]
    digests: dict[str, str]
    numbers: dict[str, Any]


def _rows(task: Task, split: str) -> Rows:
    rows: Rows = getattr(task, split)
    return rows


def _at(rows: Rows, sources: Sequence[int], where: str) -> Rows:
    """The rows whose source positions are `sources`."""
    order = np.argsort(rows.index, kind="stable")
    wanted = np.asarray(sources, dtype=np.int64)
    found = np.searchsorted(rows.index[order], wanted)
    if len(wanted) and (
        found.max() >= len(rows) or not np.array_equal(rows.index[order][found], wanted)
    ):
        raise ShiftError(
            f"{where}: names rows that the task does not have. Leave `split` out to divide the "
            "task anew."
        )
    return rows.take(order[found])
