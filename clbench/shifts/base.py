"""What shifts are made of: saved splits, the base classes, and the registry."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from clbench.core.errors import DataError, ShiftError, describe_errors
from clbench.core.files import plain, read_file, write_atomically
from clbench.core.registry import Configured, Registry
from clbench.tasks.task import IntArray, Rows, Task


class ShiftContext(Protocol):
    """What a shift may use.

    Attributes
    ----------
    seed
        The protocol's `data_seed`: one for all cells.
    base
        Folder of the suite file, which relative paths in settings are resolved against.
    """

    seed: int
    base: Path

    def task(self, name: str) -> Task:
        """Return the task called `name`, already limited to the protocol's rows."""

    def column(self, name: str, column: str) -> Mapping[str, Mapping[int, str]]:
        """Return the cells of a column of a task by split and `Rows.index`."""

    def lengths(self, rows: Rows) -> IntArray:
        """Return the number of tokens of each row, uncut and without special ones; shape (n,)."""

    def embed(self, rows: Rows) -> np.typing.NDArray[np.float32]:
        """Return pooled embeddings of the frozen pretrained encoder; shape (n, h)."""

    def held_out_texts(self, count: int) -> list[str]:
        """Return at most `count` texts of the protocol's corpus that no method sees."""


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
    ) -> Self:
        """Return the split of `task` into parts called `names`, in training order.

        `part_of` holds, for each split of the task, the number of each row's part, shape (n,).
        """
        splits = task.splits
        parts = [
            SplitPart(
                name,
                **{
                    key: tuple(splits[key].index[part == number].tolist())
                    for key, part in part_of.items()
                },
            )
            for number, name in enumerate(names)
        ]
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
        splits = task.splits
        if "tuning" in splits and "tuning" not in self.digests:
            raise ShiftError(
                f"{where} has no rows for tuning, which are held out of the training rows. Leave "
                "`split` out to tune on this scenario."
            )
        for key in dict.fromkeys([*splits, *self.digests]):
            if key not in splits or splits[key].digest != self.digests.get(key):
                raise ShiftError(
                    f"{where} was made from other {key} rows of {task.name!r} (other data, "
                    "limit or data_seed). Use the same rows, or leave `split` out to divide "
                    "these anew."
                )
        tasks = []
        for part in self.parts:
            rows_of: dict[str, Any] = {
                key: rows.where(np.isin(rows.index, getattr(part, key)))
                for key, rows in splits.items()
            }
            source = {**task.source, "part": part.name, "shift": self.kind}
            tasks.append(replace(task, name=f"{task.name}[{part.name}]", source=source, **rows_of))
        return tuple(tasks)

    def save(self, path: Path) -> None:
        """Write the split atomically."""
        write_atomically(path, json.dumps(plain(asdict(self))) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
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


@dataclass(frozen=True)
class ColumnSpec:
    """A column of R that is scored, also before training, and never trained on.

    Attributes
    ----------
    name
        Name of the column.
    metric
        The metric that R holds.
    scorer
        Function of a `Protocol`, a device and the settings that returns a
        `clbench.measure.rows.ColumnScorer`; ``pretraining`` stands for clbench's own.
    settings
        Keyword arguments of `scorer`.
    """

    name: str
    metric: str
    scorer: Callable[..., Any] | Literal["pretraining"]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScenarioTasks:
    """What a shift returns.

    Attributes
    ----------
    tasks
        In training order. Tasks with an equal `head` share it.
    split
        Division of a task into parts, if there is one.
    numbers
        Plain JSON values for the report, such as mean lengths.
    picture
        Plain JSON values that `clbench.figures.inputs` draws; kept once per scenario.
    columns
        Columns of R before those of the tasks.
    notes
        Sentences for the user, such as which rows were left out.
    """

    tasks: tuple[Task, ...]
    split: Split | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    picture: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[ColumnSpec, ...] = ()
    notes: tuple[str, ...] = ()


class Shift(Configured):
    """Base of all shifts; annotated attributes are its settings.

    Attributes
    ----------
    short_name
        Suffix of the default names of scenarios, as in ``sst2-length``; None stands for the
        shift's name, an empty string for no suffix.
    blur
        Share of the training rows of each task that come with its neighbours instead, half with
        the task before and half with the one after. Only for tasks that share a head.
    online
        Whether each row is trained on once: one epoch, whatever the protocol says.

    Examples
    --------
    >>> @clbench.shift("reverse")
    ... class Reverse(clbench.Shift):
    ...     tasks: list[str]
    ...
    ...     def build(self, context):
    ...         return [context.task(name) for name in reversed(self.tasks)]
    """

    kind: ClassVar[str] = "shift"
    short_name: ClassVar[str | None] = None

    # Files hold them only where they are set.
    blur: Annotated[float, Field(ge=0.0, le=0.5, exclude_if=lambda v: not v)] = 0.0
    online: Annotated[bool, Field(exclude_if=lambda v: not v)] = False

    def build(self, context: ShiftContext) -> ScenarioTasks | Sequence[Task]:
        """Return the tasks of the scenario in training order.

        Raises
        ------
        ShiftError
            If the rows do not allow this shift.
        """
        raise NotImplementedError


NOT_FITTED = {"task", "split", *Shift.settings_model().model_fields}
"""Settings that do not decide how a shift divides the rows."""


class DividingShift(Shift):
    """A shift that divides the rows of one task into parts, which share its head.

    Attributes
    ----------
    task
        Name of the task.
    split
        Path of a saved split, relative to the suite file, to use instead of fitting one. It must
        have been fitted on the same rows with the same settings; `blur` and `online` may differ.
    """

    task: Annotated[str, Field(min_length=1)]
    split: str | None = None

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the parts in training order.

        Raises
        ------
        DataError, ShiftError
            If the saved split cannot be read, or has other rows, settings or another shift.
        """
        task, where = context.task(self.task), "the split"
        if self.split is None:
            split = self.fit(task, context)
        else:
            path = context.base / self.split
            where, split = f"split {path}", Split.load(path)
            defaults = {k: f.default for k, f in self.settings_model().model_fields.items()}
            settings = {"shift": self.name, **defaults, **self.fitted_settings()}
            fitted = {"shift": split.kind, **defaults, **split.fitted}
            for key, value in settings.items():
                if key not in NOT_FITTED and fitted[key] != value:
                    raise ShiftError(
                        f"{where} was fitted with {key} = {fitted[key]!r}, but the scenario has "
                        f"{value!r}. Make them equal, or leave `split` out to divide anew."
                    )
        parts = split.apply(task, where)
        return ScenarioTasks(parts, split, split.numbers, self.picture(task, parts, context))

    def fit(self, task: Task, context: ShiftContext) -> Split:
        """Return a split of `task`, fitted on its training rows."""
        raise NotImplementedError

    def picture(self, task: Task, parts: tuple[Task, ...], context: ShiftContext) -> dict[str, Any]:
        """Return the data for a figure of the division into `parts`; by default none."""
        return {}

    def fitted_settings(self) -> dict[str, Any]:
        """Return the settings that decide the split; the split saves them."""
        return {k: v for k, v in self.settings().items() if k not in NOT_FITTED}


def _shift_error(name: str, entry: object) -> str | None:
    if not (isinstance(entry, type) and issubclass(entry, Shift)):
        return "a shift must be a subclass of clbench.Shift"
    if entry.build is Shift.build:
        return "it does not define build(self, context)"
    entry.settings_model()
    if "name" not in entry.__dict__:
        entry.name = name
    return None


SHIFTS: Registry[type[Shift]] = Registry("shift", check=_shift_error, group="clbench.shifts")
SHIFTS.add("dataset", "clbench.shifts.dataset:DatasetShift")
SHIFTS.add("pretraining", "clbench.shifts.dataset:Pretraining")
SHIFTS.add("sequence", "clbench.shifts.dataset:SequenceShift")
SHIFTS.add("class-incremental", "clbench.shifts.incremental:ClassIncremental")
SHIFTS.add("domain-incremental", "clbench.shifts.incremental:DomainIncremental")
SHIFTS.add("sentence-length", "clbench.shifts.division:SentenceLength")
SHIFTS.add("embedding-cluster", "clbench.shifts.division:EmbeddingCluster")

Kind = TypeVar("Kind", bound=type[Shift])


def shift(name: str) -> Callable[[Kind], Kind]:
    """Register a shift: ``@clbench.shift("name")`` over a subclass of `Shift`."""
    return SHIFTS.register(name)
