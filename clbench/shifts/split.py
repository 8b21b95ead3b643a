"""Shifts that divide one task, and the saved split, which gives the same parts again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from clbench.cache import write_atomically
from clbench.errors import DataError, ShiftError
from clbench.shifts.base import ScenarioTasks, Shift, ShiftContext
from clbench.tasks.task import IntArray, Rows, Task

SPLITS = ("train", "validation", "tuning")
REMEDY = "Name a file scenarios/*.split.json of a run, or leave `split` out to divide anew."


@dataclass(frozen=True)
class SplitPart:
    """One part of a divided task.

    A part ``short`` is the task ``glue/sst2[short]``. Its rows are positions in the task's source
    (`Rows.index`), ascending.
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
    schema_version: Literal[1] = 1

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
        """Return a split of `task` into parts with these names, in training order.

        `assigned` has, for each split of the task, the number of each row's part, shape (n,).
        """
        splits = row_splits(task)
        parts = []
        for number, name in enumerate(names):
            rows = {
                key: tuple(splits[key].index[part == number].tolist())
                for key, part in assigned.items()
            }
            parts.append(SplitPart(name, **rows))
        digests = {key: splits[key].digest for key in assigned}
        return cls(kind, task.name, fitted, tuple(parts), digests, numbers)

    def apply(self, task: Task, where: str = "the saved split") -> tuple[Task, ...]:
        """Return the parts of `task`, which share its head; `where` starts messages.

        Raises
        ------
        ShiftError
            If the task or its rows are not those of the split.
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
                    f"{where} was made of other {key} rows of {task.name!r} than those loaded "
                    "now (other data, --limit or data_seed). Use the same rows, or leave "
                    "`split` out to divide these anew."
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
        """Write the split, whole or not at all."""
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
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(f"split {path} cannot be read: {error.strerror}. {REMEDY}") from error
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise DataError(
                f"split {path} is damaged, or not a split that this clbench saves "
                f"({key}{': ' if key else ''}{first['msg']}). {REMEDY}"
            ) from error


class DividingShift(Shift):
    """A shift that divides the rows of one task into parts, which share its head.

    Attributes
    ----------
    task
        Name of the task.
    split
        A saved split, relative to the suite file, to use instead of fitting one. It must have
        been fitted on the same rows with the same settings.
    """

    task: Annotated[str, Field(min_length=1)]
    split: str | None = None

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the parts in training order.

        Raises
        ------
        DataError, ShiftError
            If the saved split cannot be read, or is that of other rows, settings or shifts.
        """
        task, where = context.task(self.task), "the split"
        if self.split is None:
            split = self.fit(task, context)
        else:
            path = context.base / self.split
            where, split = f"split {path}", Split.load(path)
            settings = {"shift": self.name, **self.fitted_settings()}
            fitted = {"shift": split.kind, **split.fitted}
            for key, value in settings.items():
                if fitted.get(key) != value:
                    raise ShiftError(
                        f"{where} was fitted with {key} = {fitted.get(key)!r}, but the scenario "
                        f"has {value!r}. Make them equal, or leave `split` out to divide anew."
                    )
        parts = split.apply(task, where)
        return ScenarioTasks(parts, split, split.numbers, self.picture(task, parts, context))

    def fit(self, task: Task, context: ShiftContext) -> Split:
        """Divide `task` by its training rows."""
        raise NotImplementedError

    def picture(self, task: Task, parts: tuple[Task, ...], context: ShiftContext) -> dict[str, Any]:
        """Return what a figure of the division into `parts` is drawn from; by default nothing."""
        return {}

    def fitted_settings(self) -> dict[str, Any]:
        """Return the settings that decide the split, which are saved in it."""
        return {k: v for k, v in self.settings().items() if k not in ("task", "split")}


def row_splits(task: Task) -> dict[str, Rows]:
    """Return the splits that `task` has, by name."""
    splits = {key: getattr(task, key) for key in SPLITS}
    return {key: rows for key, rows in splits.items() if rows is not None}
