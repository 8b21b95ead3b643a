"""The base class of shifts, which generate scenarios, and their registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from clbench.core.errors import ShiftError
from clbench.core.registry import Configured, Registry
from clbench.shifts.split import Split
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

    def embed(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Return pooled embeddings of the frozen pretrained encoder; shape (n, h)."""

    def held_out_texts(self, count: int) -> list[str]:
        """Return at most `count` texts of the protocol's corpus that no method sees."""


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
        Plain JSON values that `clbench.figures.shift` draws; kept once per scenario.
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


class DividingShift(Shift):
    """A shift that divides the rows of one task into parts, which share its head.

    Attributes
    ----------
    task
        Name of the task.
    split
        Path of a saved split, relative to the suite file, to use instead of fitting one. It must
        have been fitted on the same rows with the same settings.
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
        """Return a split of `task`, fitted on its training rows."""
        raise NotImplementedError

    def picture(self, task: Task, parts: tuple[Task, ...], context: ShiftContext) -> dict[str, Any]:
        """Return the data for a figure of the division into `parts`; by default none."""
        return {}

    def fitted_settings(self) -> dict[str, Any]:
        """Return the settings that decide the split; the split saves them."""
        return {k: v for k, v in self.settings().items() if k not in ("task", "split")}


def _check(name: str, entry: object) -> str | None:
    if not (isinstance(entry, type) and issubclass(entry, Shift)):
        return "a shift must be a subclass of clbench.Shift"
    if entry.build is Shift.build:
        return "it does not define build(self, context)"
    entry.settings_model()
    if "name" not in entry.__dict__:
        entry.name = name
    return None


SHIFTS: Registry[type[Shift]] = Registry("shift", check=_check, group="clbench.shifts")
SHIFTS.add("dataset", "clbench.shifts.dataset:DatasetShift")
SHIFTS.add("pretraining", "clbench.shifts.dataset:Pretraining")
SHIFTS.add("sequence", "clbench.shifts.sequence:Sequence")
SHIFTS.add("class-incremental", "clbench.shifts.class_incremental:ClassIncremental")
SHIFTS.add("domain-incremental", "clbench.shifts.domain_incremental:DomainIncremental")
SHIFTS.add("sentence-length", "clbench.shifts.sentence_length:SentenceLength")
SHIFTS.add("embedding-cluster", "clbench.shifts.embedding_cluster:EmbeddingCluster")

Kind = TypeVar("Kind", bound=type[Shift])


def shift(name: str) -> Callable[[Kind], Kind]:
    """Register a shift: ``@clbench.shift("name")`` over a subclass of `Shift`."""
    return SHIFTS.register(name)
